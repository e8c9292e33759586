// SPDX-License-Identifier: MIT
#include "common/control.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "common/json_writer.hpp"
#include "common/run_folder.hpp"
#include "common/wire.hpp"

namespace filetimer {

Result<ControlAddress> ControlAddress::in(const std::string& dir) {
  ControlAddress control;
  std::string path = fmt::format("{}/{}", dir, kControlName);
  if (path.size() >= sizeof control.address_.sun_path) {
    control.folder_.reset(::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!control.folder_) {
      return system_error(fmt::format("cannot open '{}'", dir));
    }
    path = fmt::format("/proc/self/fd/{}/{}", control.folder_.get(), kControlName);
  }
  control.address_.sun_family = AF_UNIX;
  std::memcpy(control.address_.sun_path, path.c_str(), path.size() + 1);
  return control;
}

namespace wire {

namespace {

struct Writer {
  void operator()(const char* key, double number) const {
    if (std::isfinite(number)) {
      json.field(key, number);
    }
  }
  void operator()(const char* key, const auto& value) const { json.given(key, value); }
  JsonWriter& json;
};

}  // namespace

std::string format_question(const Question& question) {
  JsonWriter json;
  json.field("version", kVersion);
  Question::visit(question, Writer{json});
  return std::move(json).finish();
}

}  // namespace wire
}  // namespace filetimer
