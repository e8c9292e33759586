// SPDX-License-Identifier: MIT
#include "timer_server/server_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <boost/interprocess/exceptions.hpp>
#include <filesystem>

#include "common/posix.hpp"

namespace filetimer {
namespace {

// Boost opens the file without close-on-exec, and a lock survives exec: COMMAND would hold it on.
void close_on_exec(const struct stat& file) {
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ec)) {
    const int fd = std::stoi(entry.path().filename().string());
    struct stat st {};
    if (::fstat(fd, &st) == 0 && st.st_ino == file.st_ino && st.st_dev == file.st_dev) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

tl::unexpected<Error> held(const std::string& path, pid_t holder) {
  return tl::unexpected<Error>(
      Error{holder > 0 ? fmt::format("'{}' is held by the timer_server with pid {}", path, holder)
                       : fmt::format("'{}' is held by another timer_server", path),
            EBUSY});
}

}  // namespace

Result<ServerLock> ServerLock::take(const std::string& path) {
  struct stat st {};
  struct flock lock {};
  {
    const UniqueFd fd(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd || ::fstat(fd.get(), &st) != 0) {
      return system_error(fmt::format("cannot open '{}'", path));
    }
    if (!S_ISREG(st.st_mode)) {
      return failure(fmt::format("'{}' is no regular file: expected one, or nothing", path));
    }
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(fd.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
      // Its pid as this namespace sees it; 0 or less when it does not.
      return held(path, lock.l_pid);
    }
  }
  try {
    boost::interprocess::file_lock file_lock(path.c_str());
    close_on_exec(st);
    if (!file_lock.try_lock()) {
      return held(path, 0);
    }
    return ServerLock(std::move(file_lock));
  } catch (const boost::interprocess::interprocess_exception& error) {
    return failure(fmt::format("cannot lock '{}': {}", path, error.what()));
  }
}

}  // namespace filetimer
