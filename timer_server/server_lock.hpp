// One server a folder: an exclusive POSIX lock on the file `server`. The kernel frees it when the
// process ends, however it ends, and names the process that holds it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

class ServerLock {
 public:
  // Fails with EBUSY if another server holds the lock. The error names the pid of that server if
  // the kernel shows it. Afterwards no code in this process may open `path`: closing any descriptor
  // of the file would drop the lock.
  static Result<ServerLock> take(const std::string& path);
  // Returns whether `path` still names the locked file.
  [[nodiscard]] bool is_of(const std::string& path) const {
    return identity_of(path) == lock_.identity();
  }

 private:
  explicit ServerLock(FileLock lock) : lock_(std::move(lock)) {}
  FileLock lock_;
};

}  // namespace filetimer
