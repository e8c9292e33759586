// The names in a directory, without "." and "..". The iterators of std::filesystem are not used,
// because they throw if the process whose directory of /proc they read ends.
//
//   Directory threads("/proc/self/task");
//   while (const char* const name = threads.next()) { ... }
// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "common/posix.hpp"

namespace filetimer {

class Directory {
 public:
  // Opens a directory, or takes an open one. A directory that cannot be read has no names, and
  // errno has the reason.
  explicit Directory(const std::string& path) : stream_(::opendir(path.c_str())) {}
  explicit Directory(UniqueFd fd) : stream_(::fdopendir(fd.get())) {
    if (stream_) {
      (void)fd.release();
    }
  }

  explicit operator bool() const { return stream_ != nullptr; }
  [[nodiscard]] int descriptor() const { return ::dirfd(stream_.get()); }

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
