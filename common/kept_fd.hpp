// A descriptor that a library keeps for as long as the process runs. The program around it may
// close all descriptors (a daemon, os.closerange), and its next file then has the number of the one
// that was kept. So each use compares the file behind the number with the one that was kept. If
// they differ, the number belongs to the program: it is neither used nor closed.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <string>
#include <utility>

#include "common/posix.hpp"

namespace filetimer {

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

}  // namespace filetimer
