// SPDX-License-Identifier: MIT
#include "timer_server/server_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "common/posix.hpp"

namespace filetimer {
namespace {

tl::unexpected<Error> held(const std::string& path, pid_t holder) {
  return tl::unexpected<Error>(
      Error{holder > 0 ? fmt::format("'{}' is held by the timer_server with pid {}", path, holder)
                       : fmt::format("'{}' is held by another timer_server", path),
            EBUSY});
}

}  // namespace

Result<ServerLock> ServerLock::take(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat st {};
  if (!file || ::fstat(file.get(), &st) != 0) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  if (!S_ISREG(st.st_mode)) {
    return failure(fmt::format("'{}' is no regular file: expected one, or nothing", path));
  }
  if (const auto lock = lock_state(file.get()); lock && lock->is_held) {
    return held(path, lock->holder);
  }
  auto taken = FileLock::take(std::move(file), path);
  if (!taken) {
    return taken.error().errno_value == EBUSY ? held(path, 0)
                                              : tl::unexpected<Error>(std::move(taken.error()));
  }
  return ServerLock(std::move(*taken));
}

}  // namespace filetimer
