// What every caller of the kernel here needs: one owner per descriptor, one place where an
// interrupted call is tried again, and whole reads and writes at a place in a file.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
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

// Calls again for as long as a signal interrupted the call. `call` returns -1 on error.
template <class Call>
auto retry_eintr(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) {
      return result;
    }
  }
}

// All of it, or false: the file has less (errno is then 0), or errno says why.
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

// All of it, or false with errno set.
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
