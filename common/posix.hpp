// Helpers for system calls: an owner of a descriptor, a loop for interrupted calls, and complete
// reads and writes at an offset.
// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace filetimer {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset(other.release());
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) {
      ::close(old);  // never retried: on Linux the descriptor is gone even after EINTR
    }
  }

 private:
  int fd_ = -1;
};

// If standard input, output or error is closed, the next file gets its number, and what the program
// prints would go into that file. These two functions prevent that, in a program and in a library.

// Gives standard descriptors that are closed to /dev/null. Other programs find them closed again.
inline void occupy_standard_descriptors() {
  UniqueFd null;
  do {
    (void)null.release();
    null.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  } while (null && null.get() <= STDERR_FILENO);
}

// Returns the file under a number of its own. errno says why there is none.
inline UniqueFd above_standard_descriptors(UniqueFd fd) {
  return fd && fd.get() <= STDERR_FILENO
             ? UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1))
             : std::move(fd);
}

// Repeats a call that a signal has interrupted. `call` returns -1 on error.
template <class Call>
auto retry_eintr(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) {
      return result;
    }
  }
}

// Returns EFBIG if this process may not make a file of so many bytes, else 0. To try it would raise
// SIGXFSZ, which ends a process by default.
inline int error_of_size(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes ? EFBIG : 0;
}

// Waits until there is something to read, or the other end is closed, for at most so long. Returns
// whether it is so.
inline bool is_readable_within(int fd, std::chrono::nanoseconds limit) {
  // Rounded up: poll(0) would spin through the last millisecond.
  const std::int64_t ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  pollfd reading{fd, POLLIN, 0};
  const int bound = static_cast<int>(std::clamp<std::int64_t>(ms, 0, INT_MAX));
  return retry_eintr([&] { return ::poll(&reading, 1, bound); }) > 0;
}

// Reads all bytes. Returns false if the file has fewer (errno is 0), or with the reason in errno.
inline bool read_at(int fd, void* to, std::size_t bytes, std::size_t offset) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got =
        retry_eintr([&] { return ::pread(fd, at, bytes, static_cast<off_t>(offset)); });
    if (got <= 0) {
      errno = got == 0 ? 0 : errno;
      return false;
    }
    at += got;
    offset += static_cast<std::size_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// Writes all bytes. Returns false with the reason in errno.
inline bool write_at(int fd, const void* from, std::size_t bytes, std::size_t offset) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put =
        retry_eintr([&] { return ::pwrite(fd, at, bytes, static_cast<off_t>(offset)); });
    if (put <= 0) {
      errno = put == 0 ? ENOSPC : errno;
      return false;
    }
    at += put;
    offset += static_cast<std::size_t>(put);
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

}  // namespace filetimer
