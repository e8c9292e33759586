// The names in a directory, without "." and "..". Not by std::filesystem, whose iterators throw
// when the process whose directory of /proc they read ends.
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
  // Opens a directory, or takes one that is open. One that cannot be read has no names; errno then
  // says why.
  explicit Directory(const std::string& path) : stream_(::opendir(path.c_str())) {}
  explicit Directory(UniqueFd fd) : stream_(::fdopendir(fd.get())) {
    if (stream_) {
      (void)fd.release();
    }
  }

  explicit operator bool() const { return stream_ != nullptr; }
  [[nodiscard]] int descriptor() const { return ::dirfd(stream_.get()); }

  // Returns the next name, which is valid until the next call. After the last one null, and errno
  // is 0, or says why no more can be read.
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
