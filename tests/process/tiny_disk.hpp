// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "common/posix.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mounts.hpp"

namespace filetimer::testing {

// A file system of 64 KiB on the folder `disk` of the test, in a mount namespace of the test's own.
class TinyDisk {
 public:
  explicit TinyDisk(const TempFolder& temp) : path_(temp.path("disk")) {
    REQUIRE(::mkdir(path_.c_str(), 0700) == 0);
    mounted_ = enter_mount_namespace() && mount_tmpfs(path_, "size=64k,mode=0700");
  }
  TinyDisk(const TinyDisk&) = delete;
  TinyDisk& operator=(const TinyDisk&) = delete;
  ~TinyDisk() {
    if (mounted_) {
      ::umount2(path_.c_str(), MNT_DETACH);
    }
  }
  [[nodiscard]] bool is_mounted() const { return mounted_; }
  [[nodiscard]] std::string path(const char* name) const { return path_ + "/" + name; }
  // Fills the file system.
  void fill() const {
    const filetimer::UniqueFd fd(
        ::open(path("filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(fd);
    const std::string block(1024, 'x');
    while (::write(fd.get(), block.data(), block.size()) > 0) {
    }
    REQUIRE(errno == ENOSPC);
  }
  void free() const { REQUIRE(::unlink(path("filler").c_str()) == 0); }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace filetimer::testing
