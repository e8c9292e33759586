// Files that are shared with other processes: opened with checks, mapped (Boost.Interprocess),
// guarded against being cut short, and locked by the POSIX record lock by which the kernel knows
// their owner. A process loses the lock when it closes any descriptor of the same file. So the
// mapping and the lock must live as long as the lock is needed, and the file must not be opened
// again.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace boost::interprocess {
class mapped_region;
}  // namespace boost::interprocess

namespace filetimer {

struct OwnFile {
  UniqueFd fd;
  struct stat status {};  // as it was when the file was opened
};

// Opens a regular file of the user `owner` in a directory to which other programs may write: it
// never waits for the other end of a FIFO, follows no symlink, and checks the open file. `access`
// is O_RDONLY or O_RDWR. Errors call the file `name`, or by its quoted path if `name` is empty.
Result<OwnFile> open_own_file(const std::string& path, int access, std::string name = {},
                              uid_t owner = ::geteuid());

// Makes room in an open file, however many signals come, and keeps its contents. Returns an errno
// value; 0: there is room, and no access to a mapping of this part raises SIGBUS.
int make_room(int fd, std::size_t begin, std::size_t bytes);

// Keeps a process alive if a page, or the status page, is cut short. Another process of the user
// can truncate the file at any moment, and an access to the missing part of a mapping raises
// SIGBUS.
//
// While a BusGuard lives, the first SIGBUS in its memory replaces the file by zeroes permanently,
// and the instruction runs again. is_broken() is true from then on: the other side does not see
// this memory any more, and what was read since the fault must not be used.
//
// The first guard of the process installs the handler of SIGBUS. The handler passes a fault
// elsewhere to the handler that was installed before. A handler that is installed later replaces
// this one, and then handles faults in guarded memory, too.
//
// A BusGuard may be made and destroyed in any thread, but not in two at a time. is_broken() may be
// called in any thread. The memory must stay mapped as long as the guard lives.
class BusGuard : NotCopied {
 public:
  // Guards nothing, and is not armed, if kMaxGuards are alive or there is no memory: a fault then
  // ends the process, as without a guard.
  BusGuard(void* begin, std::size_t bytes);
  ~BusGuard();

  [[nodiscard]] bool is_armed() const { return range_ != nullptr; }
  [[nodiscard]] bool is_broken() const;

  // A worker has two for each runtime directory that it has used, and for each that was made again;
  // a server has one for each page, of which it reads eight of a worker.
  static constexpr std::size_t kMaxGuards = 8 * kMaxWorkers + 1024;

  struct Range;  // an entry of the handler's list

 private:
  Range* range_;  // null: no entry was free
};

// A mapping that a BusGuard keeps if the file is cut short. At most BusGuard::kMaxGuards live at a
// time, and no two threads make or destroy one at the same time.
class MappedFile {
 public:
  enum class Access { kRead, kReadWrite };
  // Maps `bytes` bytes of the file, by a descriptor that is close-on-exec from the start: another
  // thread may fork at any moment. Fails with EAGAIN if there is no guard left.
  static Result<MappedFile> map(const std::string& path, Access access, std::size_t bytes);
  // Maps the open file, which errors call `name`.
  static Result<MappedFile> map(UniqueFd file, Access access, std::size_t bytes,
                                const std::string& name);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();

  [[nodiscard]] void* data() const;
  [[nodiscard]] int descriptor() const { return file_.get(); }  // -1: it was closed
  // Closes the descriptor and keeps the mapping. Every FileLock of this process on the file is
  // lost.
  void close_descriptor() { file_.reset(); }
  [[nodiscard]] UniqueFd take_descriptor() { return std::move(file_); }
  // Returns whether the file was cut short: the mapping shows zeroes from then on. May be called in
  // any thread.
  [[nodiscard]] bool is_broken() const { return guard_->is_broken(); }

 private:
  MappedFile();
  UniqueFd file_;
  std::unique_ptr<boost::interprocess::mapped_region> region_;
  std::unique_ptr<BusGuard> guard_;  // destroyed before the mapping
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
  // Takes the lock again if it is lost. Returns whether this process has it.
  bool keep();
  [[nodiscard]] const FileIdentity& identity() const { return file_.identity(); }

 private:
  explicit FileLock(UniqueFd file) : file_(std::move(file)) {}
  KeptFd file_;
};

}  // namespace filetimer
