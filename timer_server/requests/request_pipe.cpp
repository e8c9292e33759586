// SPDX-License-Identifier: MIT
#include "timer_server/requests/request_pipe.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "common/run_folder.hpp"

namespace filetimer {
namespace {

// Room for 2,000 requests of clients that do not wait when the pipe is full, while one turn's
// reading stays under 2 ms.
constexpr int kPipeBytes = 256 << 10;

// A reader is there when the pipe can be opened for writing without waiting.
bool somebody_reads(const std::string& path) {
  return static_cast<bool>(
      UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)));
}

// Who has the pipe open for reading, as far as /proc lets us see; 0 when it does not.
pid_t find_reader(const std::string& path) {
  struct stat pipe {};
  if (::stat(path.c_str(), &pipe) != 0) {
    return 0;
  }
  std::error_code ec;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ec)) {
    const std::string pid_text = process.path().filename().string();
    if (pid_text.find_first_not_of("0123456789") != pid_text.npos) {
      continue;
    }
    std::error_code fds_ec;
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", fds_ec)) {
      struct stat opened {};
      struct stat link {};
      if (::stat(fd.path().c_str(), &opened) == 0 && opened.st_ino == pipe.st_ino &&
          opened.st_dev == pipe.st_dev && ::lstat(fd.path().c_str(), &link) == 0 &&
          (link.st_mode & S_IRUSR) != 0 && std::stoi(pid_text) != ::getpid()) {
        return std::stoi(pid_text);
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

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

}  // namespace

RequestPipe::RequestPipe(std::string path, UniqueFd fd, bool outlives_us)
    : path_(std::move(path)), fd_(std::move(fd)), outlives_us_(outlives_us) {
  // Best effort: a user over /proc/sys/fs/pipe-user-pages-soft keeps the smaller pipe.
  ::fcntl(fd_.get(), F_SETPIPE_SZ, kPipeBytes);
  const int size = ::fcntl(fd_.get(), F_GETPIPE_SZ);
  capacity_ = size > 0 ? static_cast<std::size_t>(size) : std::size_t{65536};
}

Result<RequestPipe> RequestPipe::open(const std::string& path) {
  if (Status safe = check_parents(path); !safe) {
    return tl::unexpected<Error>(std::move(safe.error()));
  }
  if (::mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) {
    return system_error(fmt::format("cannot make the pipe '{}'", path));
  }
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) {
    return system_error(fmt::format("cannot look at '{}'", path));
  }
  if (Status good = check_pipe(path, st); !good) {
    return tl::unexpected<Error>(std::move(good.error()));
  }
  if (somebody_reads(path)) {
    const pid_t holder = find_reader(path);
    return tl::unexpected<Error>(
        Error{holder != 0 ? fmt::format("'{}' is being read by process {}", path, holder)
                          : fmt::format("'{}' is being read by another process", path),
              EBUSY});
  }
  // Read and write: with a writer of our own the pipe never reports end-of-file, and with no
  // client there is nothing to wait for in open(). A symlink swapped in is not followed.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    return system_error(fmt::format("cannot open the pipe '{}'", path));
  }
  struct stat opened {};
  if (::fstat(fd.get(), &opened) != 0 || !same_file(st, opened)) {
    return failure(fmt::format("'{}' was replaced while it was being opened", path));
  }
  return RequestPipe(path, std::move(fd), false);
}

Result<RequestPipe> RequestPipe::take(const std::string& path, UniqueFd passed) {
  if (Status safe = check_parents(path); !safe) {
    return tl::unexpected<Error>(std::move(safe.error()));
  }
  const std::string through = fmt::format("/proc/self/fd/{}", passed.get());
  std::error_code ec;
  const std::string what = std::filesystem::read_symlink(through, ec).string();
  struct stat st {};
  if (::fstat(passed.get(), &st) != 0 || !S_ISFIFO(st.st_mode)) {
    return failure(
        fmt::format("what was passed ('{}') is no named pipe: expected '{}'", what, path));
  }
  struct stat at_path {};
  const bool is_at_path = ::lstat(path.c_str(), &at_path) == 0 && same_file(st, at_path);
  if (!is_at_path && st.st_nlink > 0) {
    return failure(fmt::format("the pipe that was passed is '{}': expected '{}'", what, path));
  }
  if (Status good = check_pipe(path, st); !good) {
    return tl::unexpected<Error>(std::move(good.error()));
  }
  // Opened once more: flags belong to an opening, and that one's are whoever passed it to set.
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

std::size_t RequestPipe::read(std::span<char> room) {
  const ssize_t got = retry_eintr([&] { return ::read(fd_.get(), room.data(), room.size()); });
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

RequestPipe::Condition RequestPipe::look() const {
  struct stat at_path {};
  struct stat ours {};
  if (::lstat(path_.c_str(), &at_path) != 0) {
    return errno == ENOENT ? Condition::kGone : Condition::kInPlace;  // else: ask again later
  }
  if (::fstat(fd_.get(), &ours) == 0 && same_file(at_path, ours)) {
    return Condition::kInPlace;
  }
  return S_ISFIFO(at_path.st_mode) && somebody_reads(path_) ? Condition::kTakenOver
                                                            : Condition::kGone;
}

void RequestPipe::remove_from_path() const {
  struct stat at_path {};
  struct stat ours {};
  if (!outlives_us_ && ::lstat(path_.c_str(), &at_path) == 0 && ::fstat(fd_.get(), &ours) == 0 &&
      same_file(at_path, ours)) {
    ::unlink(path_.c_str());
  }
}

PipeRemover::PipeRemover(const RequestPipe& pipe) {
  if (!pipe.outlives_us() && ::fstat(pipe.fd(), &identity_) == 0) {
    path_ = pipe.path();
  }
}

void PipeRemover::remove() const {
  struct stat at_path {};
  if (!path_.empty() && ::lstat(path_.c_str(), &at_path) == 0 && same_file(at_path, identity_)) {
    ::unlink(path_.c_str());
  }
}

Status set_aside(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0 || S_ISFIFO(st.st_mode)) {
    return {};
  }
  constexpr int kTries = 100;
  for (int i = 1; i <= kTries; ++i) {
    const std::string aside =
        fmt::format("{}.not-a-pipe{}", path, i == 1 ? "" : fmt::format("-{}", i));
    if (::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, aside.c_str(), RENAME_NOREPLACE) == 0) {
      return {};
    }
    if (errno != EEXIST) {
      break;
    }
  }
  return system_error(fmt::format("cannot move '{}' out of the way", path));
}

}  // namespace filetimer
