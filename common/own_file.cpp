// SPDX-License-Identifier: MIT
#include "common/own_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

namespace filetimer {

Result<OwnFile> open_own_file(const std::string& path, int access, std::string name) {
  if (name.empty()) {
    name = fmt::format("'{}'", path);
  }
  OwnFile file;
  file.fd.reset(retry_eintr([&] {
    return ::open(path.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  }));
  if (!file.fd || ::fstat(file.fd.get(), &file.status) != 0) {
    return errno == ELOOP ? failure(name + " is a symlink: expected a regular file")
                          : system_error("cannot open " + name);
  }
  if (!S_ISREG(file.status.st_mode)) {
    return failure(name + " is not a regular file");
  }
  if (file.status.st_uid != ::geteuid()) {
    return failure(fmt::format("{} belongs to user {}: expected user {}", name, file.status.st_uid,
                               ::geteuid()));
  }
  return file;
}

}  // namespace filetimer
