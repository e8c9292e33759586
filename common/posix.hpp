// Helpers for system calls: owners of descriptors, a loop for interrupted calls, complete reads and
// writes at an offset, and the names in a directory.
// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace filetimer {

// A base of what must not be copied or moved: its end does something, or others have its address.
struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

// While it lives, this thread is not cancelled in open(), write() or close(): the unwinding would
// end the process at the first function that is noexcept.
class NoCancellation : NotCopied {
 public:
  NoCancellation() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { ::pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = 0;
};

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) {
      const NoCancellation uncancelled;  // this runs in destructors
      ::close(old);  // never retried: on Linux the descriptor is gone even after EINTR
    }
  }

 private:
  int fd_ = -1;
};

// The file behind an open descriptor, or at a path.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Async-signal-safe. Returns no file's identity if `fd` is not open.
inline FileIdentity identity_of(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? FileIdentity{st.st_dev, st.st_ino} : FileIdentity{};
}

// Does not follow a symlink. Returns no file's identity if there is nothing at `path`.
inline FileIdentity identity_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? FileIdentity{st.st_dev, st.st_ino} : FileIdentity{};
}

// A descriptor that a library keeps for as long as the process runs. The program around it may
// close all descriptors (a daemon, os.closerange), and its next file then has the number of the one
// that was kept. So each use compares the file behind the number with the one that was kept. If
// they differ, the number belongs to the program: it is neither used nor closed.
class KeptFd {
 public:
  KeptFd() = default;
  explicit KeptFd(UniqueFd fd) : fd_(std::move(fd)), identity_(identity_of(fd_.get())) {}
  KeptFd(KeptFd&&) noexcept = default;
  KeptFd& operator=(KeptFd&& other) noexcept {
    reset();
    fd_ = std::move(other.fd_);
    identity_ = other.identity_;
    return *this;
  }
  ~KeptFd() { reset(); }

  // Returns -1 from then on if the program has closed it, and if there is none.
  [[nodiscard]] int get() {
    if (fd_ && identity_of(fd_.get()) != identity_) {
      (void)fd_.release();
    }
    return fd_.get();
  }
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  // Closes it, unless the program has closed it.
  void reset() {
    if (get() >= 0) {
      fd_.reset();
    }
  }

 private:
  UniqueFd fd_;
  FileIdentity identity_;
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

// Returns the set of these signals.
template <class Signals = std::initializer_list<int>>
sigset_t signal_set(const Signals& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) {
    ::sigaddset(&set, signal);
  }
  return set;
}

// Opens a file, close-on-exec; empty, with errno: it cannot be opened.
inline UniqueFd open_file(const char* path, int flags, mode_t mode = 0) {
  return UniqueFd(retry_eintr([&] { return ::open(path, flags | O_CLOEXEC, mode); }));
}

// Returns the target of a symlink, of which at most so many bytes; empty: there is no symlink, or
// it cannot be read.
inline std::string link_target(const std::string& path, std::size_t most = PATH_MAX) {
  std::string target(most, '\0');
  const ssize_t length = ::readlink(path.c_str(), target.data(), most);
  target.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return target;
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

// The names in a directory, without "." and "..". The iterators of std::filesystem are not used,
// because they throw if the process whose directory of /proc they read ends.
//
//   Directory threads("/proc/self/task");
//   while (const char* const name = threads.next()) { ... }
class Directory {
 public:
  // A directory that cannot be opened has no names, and errno has the reason.
  explicit Directory(const std::string& path) : stream_(::opendir(path.c_str())) {}

  explicit operator bool() const { return stream_ != nullptr; }

  // Returns the next name, which is valid until the next call. Returns null after the last name,
  // with errno 0, or with the reason why no more can be read.
  const char* next() {
    while (stream_) {
      errno = 0;
      const dirent* const entry = ::readdir(stream_.get());
      if (entry == nullptr) {
        return nullptr;
      }
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") {
        return entry->d_name;
      }
    }
    return nullptr;
  }

 private:
  struct Close {
    void operator()(DIR* stream) const { ::closedir(stream); }
  };
  std::unique_ptr<DIR, Close> stream_;
};

}  // namespace filetimer
