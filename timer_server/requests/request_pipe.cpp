// SPDX-License-Identifier: MIT
#include "timer_server/requests/request_pipe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/proc_files.hpp"
#include "common/run_folder.hpp"

namespace filetimer {
namespace {

// Has room for 2,000 requests, because clients do not wait for a full pipe. An iteration reads this
// much in less than 2 ms.
constexpr int kPipeBytes = 256 << 10;

// Returns whether a process reads the pipe: otherwise a non-blocking open() for writing fails.
bool is_being_read(const std::string& path) {
  return static_cast<bool>(
      UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)));
}

// Returns the pid of a process that has the pipe open for reading, or 0 if the server may not read
// that process's descriptors in /proc.
pid_t find_reader(const std::string& path) {
  const FileIdentity pipe = identity_of(path);
  for (const pid_t pid : numbers_in("/proc")) {
    if (pid == ::getpid()) {
      continue;
    }
    const std::string folder = fmt::format("/proc/{}/fd", pid);
    for (const int fd : numbers_in(folder)) {
      const std::string path_of_fd = fmt::format("{}/{}", folder, fd);
      struct stat opened {};
      struct stat link {};
      if (::stat(path_of_fd.c_str(), &opened) == 0 &&
          pipe == FileIdentity{opened.st_dev, opened.st_ino} &&
          ::lstat(path_of_fd.c_str(), &link) == 0 && (link.st_mode & S_IRUSR) != 0) {
        return pid;
      }
    }
  }
  return 0;
}

Status check_pipe(const std::string& path, const struct stat& st) {
  if (!S_ISFIFO(st.st_mode)) {
    const char* what = S_ISREG(st.st_mode)   ? "a regular file"
                       : S_ISDIR(st.st_mode) ? "a folder"
                       : S_ISLNK(st.st_mode) ? "a symlink"
                                             : "not a pipe";
    return failure(fmt::format("'{}' is {}: expected a named pipe, or nothing", path, what));
  }
  if (st.st_uid != ::geteuid()) {
    return failure(fmt::format("'{}' belongs to user {}: expected a pipe of user {}", path,
                               st.st_uid, ::geteuid()));
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return failure(fmt::format("others may write to '{}' (mode {:04o}): expected mode 0600", path,
                               st.st_mode & 07777));
  }
  return {};
}

}  // namespace

RequestPipe::RequestPipe(std::string path, UniqueFd fd, bool outlives_server)
    : path_(std::move(path)), fd_(std::move(fd)), outlives_server_(outlives_server) {
  // This fails for a user over /proc/sys/fs/pipe-user-pages-soft. Then the pipe stays smaller.
  ::fcntl(fd_.get(), F_SETPIPE_SZ, kPipeBytes);
  const int size = ::fcntl(fd_.get(), F_GETPIPE_SZ);
  capacity_ = size > 0 ? static_cast<std::size_t>(size) : std::size_t{65536};
}

Result<RequestPipe> RequestPipe::open(const std::string& path) {
  FILETIMER_TRY(check_parents(path));
  if (::mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) {
    return system_error(fmt::format("cannot make the pipe '{}'", path));
  }
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) {
    return system_error(fmt::format("cannot look at '{}'", path));
  }
  FILETIMER_TRY(check_pipe(path, st));
  if (is_being_read(path)) {
    const pid_t holder = find_reader(path);
    return failure(holder != 0 ? fmt::format("'{}' is being read by process {}", path, holder)
                               : fmt::format("'{}' is being read by another process", path),
                   EBUSY);
  }
  // O_RDWR makes the server a writer, too: the pipe never reports an end of file, and open() does
  // not wait for a client. O_NOFOLLOW: another process may have put a symlink there since the
  // check.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    return system_error(fmt::format("cannot open the pipe '{}'", path));
  }
  if (identity_of(fd.get()) != FileIdentity{st.st_dev, st.st_ino}) {
    return failure(fmt::format("'{}' was replaced while it was being opened", path));
  }
  // Another server may have found it without a reader at the same time.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return failure(fmt::format("'{}' is being read by another process", path), EBUSY);
  }
  return RequestPipe(path, std::move(fd), false);
}

Result<RequestPipe> RequestPipe::take(const std::string& path, UniqueFd passed) {
  FILETIMER_TRY(check_parents(path));
  const std::string through = fmt::format("/proc/self/fd/{}", passed.get());
  const std::string what = link_target(through);
  struct stat st {};
  if (::fstat(passed.get(), &st) != 0 || !S_ISFIFO(st.st_mode)) {
    return failure(
        fmt::format("what was passed ('{}') is not a named pipe: expected '{}'", what, path));
  }
  if (identity_of(path) != identity_of(passed.get()) && st.st_nlink > 0) {
    return failure(fmt::format("the pipe that was passed is '{}': expected '{}'", what, path));
  }
  FILETIMER_TRY(check_pipe(path, st));
  // The pipe is opened again, because O_NONBLOCK set on the passed descriptor would change it for
  // the service manager as well.
  UniqueFd fd(::open(through.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    return system_error(fmt::format("cannot open the pipe '{}'", path));
  }
  return RequestPipe(path, std::move(fd), true);
}

std::size_t RequestPipe::waiting() const {
  int bytes = 0;
  return ::ioctl(fd_.get(), FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes)
                                                                : 0;
}

RequestPipe::Condition RequestPipe::condition() const {
  struct stat at_path {};
  if (::lstat(path_.c_str(), &at_path) != 0) {
    return errno == ENOENT ? Condition::kGone : Condition::kInPlace;  // other errors may pass
  }
  if (identity_of(fd_.get()) == FileIdentity{at_path.st_dev, at_path.st_ino}) {
    return Condition::kInPlace;
  }
  if (!S_ISFIFO(at_path.st_mode) && !S_ISLNK(at_path.st_mode)) {
    return Condition::kGone;
  }
  // Through a link, too: a server that has taken the directory may have its pipe elsewhere.
  const UniqueFd there(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat read {};
  const bool is_read = there && ::fstat(there.get(), &read) == 0 && S_ISFIFO(read.st_mode) &&
                       identity_of(there.get()) != identity_of(fd_.get());
  return is_read ? Condition::kTakenOver : Condition::kGone;
}

}  // namespace filetimer
