// A file that is mapped and shared with other processes (Boost.Interprocess), and the POSIX record
// lock by which the kernel knows its owner. A process loses the lock when it closes any descriptor
// of the same file. So both objects must live as long as the lock is needed, and the file must not
// be opened again.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "common/kept_fd.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace boost::interprocess {
class mapped_region;
}  // namespace boost::interprocess

namespace filetimer {

class MappedFile {
 public:
  enum class Access { kRead, kReadWrite };
  // Maps `bytes` bytes of the file, by a descriptor that is close-on-exec from the start: another
  // thread may fork at any moment. An access after the end of the file raises SIGBUS.
  static Result<MappedFile> map(const std::string& path, Access access, std::size_t bytes);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();

  [[nodiscard]] void* data() const;
  [[nodiscard]] int descriptor() const { return file_ ? file_.get() : -1; }  // -1: it was closed
  // Closes the descriptor and keeps the mapping. Every FileLock of this process on the file is
  // lost.
  void close_descriptor() { file_.reset(); }

 private:
  MappedFile();
  UniqueFd file_;
  std::unique_ptr<boost::interprocess::mapped_region> region_;
};

// The lock of another process on a file.
struct LockState {
  bool is_held = false;
  pid_t holder = 0;  // 0: none, or a process outside this pid namespace
};
// Returns the lock on the file behind `fd`. A lock of this process counts as none.
Result<LockState> lock_state(int fd);

// An exclusive lock on a whole file, held through a descriptor that exec closes. Not inherited by
// fork. Lost if the program around the library closes the descriptor.
class FileLock {
 public:
  // Take the lock. Fail with EBUSY if another process holds it. `file` is open for writing, and
  // `path` names it in errors.
  static Result<FileLock> take(const std::string& path);
  static Result<FileLock> take(UniqueFd file, const std::string& path);

  // Returns -1 if the program has closed the descriptor.
  [[nodiscard]] int descriptor() { return file_.get(); }
  [[nodiscard]] const FileIdentity& identity() const { return file_.identity(); }

 private:
  explicit FileLock(UniqueFd file) : file_(std::move(file)) {}
  KeptFd file_;
};

}  // namespace filetimer
