// SPDX-License-Identifier: MIT
#include "common/control.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstring>

#include "common/run_folder.hpp"

namespace filetimer {

Result<ControlAddress> ControlAddress::in(const std::string& dir, std::string_view name) {
  ControlAddress control;
  std::string path = fmt::format("{}/{}", dir, name);
  if (path.size() >= sizeof control.address_.sun_path) {
    control.folder_.reset(::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!control.folder_) {
      return system_error(fmt::format("cannot open '{}'", dir));
    }
    path = fmt::format("/proc/self/fd/{}/{}", control.folder_.get(), name);
  }
  control.address_.sun_family = AF_UNIX;
  std::memcpy(control.address_.sun_path, path.c_str(), path.size() + 1);
  return control;
}

}  // namespace filetimer
