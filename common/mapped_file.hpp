// A file that is mapped and shared with other processes, and the lock by which the kernel knows its
// owner: Boost.Interprocess, with the descriptors that it opens made close-on-exec.
// Two rules of POSIX record locks for users of FileLock: it is lost when the process closes any
// descriptor of the same file, so both objects are kept for as long as the lock is wanted and the
// file is not opened again; and it survives exec as long as its descriptor does.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "common/result.hpp"

namespace boost::interprocess {
class file_lock;
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

// An exclusive lock on a whole file. Not inherited by fork.
class FileLock {
 public:
  // Fails with EBUSY when another process holds it.
  static Result<FileLock> take(const std::string& path);
  FileLock(FileLock&&) noexcept;
  FileLock& operator=(FileLock&&) noexcept;
  ~FileLock();

 private:
  FileLock();
  std::unique_ptr<boost::interprocess::file_lock> lock_;
};

}  // namespace filetimer
