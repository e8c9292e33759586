// A file that is mapped and shared with other processes (Boost.Interprocess), and the POSIX record
// lock by which the kernel knows its owner.
// A process loses the lock when it closes any descriptor of the same file. So both objects are kept
// for as long as the lock is wanted, and the file is not opened again.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace boost::interprocess {
class file_mapping;
class mapped_region;
}  // namespace boost::interprocess

namespace filetimer {

class MappedFile {
 public:
  enum class Access { kRead, kReadWrite };
  // Maps `bytes` bytes, which the file should have: those behind its end raise SIGBUS when touched.
  static Result<MappedFile> map(const std::string& path, Access access, std::size_t bytes);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();

  [[nodiscard]] void* data() const;
  [[nodiscard]] int descriptor() const;  // -1 once it was closed
  // The mapping stays; the descriptor is closed, and with it every FileLock of this process on the
  // file is lost.
  void close_descriptor();

 private:
  MappedFile();
  std::unique_ptr<boost::interprocess::file_mapping> file_;
  std::unique_ptr<boost::interprocess::mapped_region> region_;
};

// Who holds a lock on the file behind `fd`, as the kernel tells a process that does not.
struct LockState {
  bool is_held = false;
  pid_t holder = 0;  // 0: nobody, or nobody whom this pid namespace can see
};
Result<LockState> lock_state(int fd);

// An exclusive lock on a whole file, held through a descriptor that exec closes. Not inherited by
// fork.
class FileLock {
 public:
  // Both fail with EBUSY when another process holds the lock. `file` is open for writing, and
  // `path` names it in errors.
  static Result<FileLock> take(const std::string& path);
  static Result<FileLock> take(UniqueFd file, const std::string& path);

 private:
  explicit FileLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

}  // namespace filetimer
