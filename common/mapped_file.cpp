// SPDX-License-Identifier: MIT
#include "common/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <boost/interprocess/detail/os_file_functions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstdint>
#include <new>

namespace filetimer {

// Read by the handler, in the thread that faulted. `begin` is written last and cleared first, so
// the handler sees only complete ranges.
struct BusGuard::Range {
  std::atomic<std::uintptr_t> begin{0};  // 0: free. Release; the handler's load acquires
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> is_broken{false};
  Range* next = nullptr;       // in the handler's list
  Range* next_free = nullptr;  // for threads that make guards
};

namespace {

namespace bi = boost::interprocess;

// A descriptor as Boost maps it (its MemoryMappable). boost::interprocess::file_mapping would open
// the file by itself, without O_CLOEXEC.
struct OpenFile {
  int descriptor;
  bi::mode_t mode;
  [[nodiscard]] bi::mapping_handle_t get_mapping_handle() const { return {descriptor, false}; }
  [[nodiscard]] bi::mode_t get_mode() const { return mode; }
};

struct flock exclusive_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;  // with offset 0 and length 0: the whole file
  return lock;
}

// All ranges that were ever guarded; they are used again and never destroyed.
constinit std::atomic<BusGuard::Range*> guarded_ranges{nullptr};
// One thread at a time makes and destroys guards.
constinit BusGuard::Range* first_free = nullptr;
constinit std::size_t range_count = 0;
struct sigaction handler_before {};

BusGuard::Range* range_of(std::uintptr_t address) {
  // Pairs with the store of a range that was made.
  BusGuard::Range* range = guarded_ranges.load(std::memory_order_acquire);
  for (; range != nullptr; range = range->next) {
    const std::uintptr_t begin = range->begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < range->end.load(std::memory_order_relaxed)) {
      return range;
    }
  }
  return nullptr;
}

// Async-signal-safe. Preserves errno.
bool replace_by_zeroes(BusGuard::Range& range) {
  const int saved = errno;
  void* const begin = reinterpret_cast<void*>(range.begin.load(std::memory_order_relaxed));
  const std::size_t bytes =
      range.end.load(std::memory_order_relaxed) - range.begin.load(std::memory_order_relaxed);
  // If two threads fault, only the first one maps: a second mapping would discard what was written
  // to the first.
  bool is_done = range.is_broken.exchange(true, std::memory_order_acq_rel);
  if (!is_done) {
    is_done = ::mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                     -1, 0) == begin;
  }
  errno = saved;
  return is_done;
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;  // otherwise the signal is from kill(2)
  if (is_fault) {
    BusGuard::Range* const range = range_of(reinterpret_cast<std::uintptr_t>(info->si_addr));
    if (range != nullptr && replace_by_zeroes(*range)) {
      return;
    }
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler == SIG_DFL) {
    ::sigaction(signal, &handler_before, nullptr);
    if (!is_fault) {
      ::raise(signal);  // pending until this handler returns
    }
  } else if (handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  } else if (is_fault) {
    ::signal(signal, SIG_DFL);  // a fault cannot be ignored: it would recur without end
  }
}

constinit bool is_handler_installed = false;  // one thread at a time makes guards

void install_handler() {
  if (!is_handler_installed) {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigaction(SIGBUS, nullptr, &handler_before);  // before the handler can run
    is_handler_installed = ::sigaction(SIGBUS, &action, nullptr) == 0;
  }
}

// Returns null if there are too many.
BusGuard::Range* free_range() {
  if (first_free != nullptr) {
    return std::exchange(first_free, first_free->next_free);
  }
  auto* const made =
      range_count < BusGuard::kMaxGuards ? new (std::nothrow) BusGuard::Range : nullptr;
  if (made != nullptr) {
    ++range_count;
    made->next = guarded_ranges.load(std::memory_order_relaxed);
    guarded_ranges.store(made, std::memory_order_release);
  }
  return made;
}

}  // namespace

BusGuard::BusGuard(void* begin, std::size_t bytes) : range_(nullptr) {
  install_handler();
  range_ = free_range();
  if (range_ != nullptr) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    range_->is_broken.store(false, std::memory_order_relaxed);
    range_->end.store(address + bytes, std::memory_order_relaxed);
    range_->begin.store(address, std::memory_order_release);
  }
}

BusGuard::~BusGuard() {
  if (range_ != nullptr) {
    range_->begin.store(0, std::memory_order_release);
    range_->next_free = first_free;  // before the range is free, for a child of a bare clone()
    first_free = range_;
  }
}

bool BusGuard::is_broken() const {
  return range_ != nullptr && range_->is_broken.load(std::memory_order_acquire);
}

Result<OwnFile> open_own_file(const std::string& path, int access, std::string name, uid_t owner) {
  if (name.empty()) {
    name = fmt::format("'{}'", path);
  }
  OwnFile file;
  file.fd = open_file(path.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (!file.fd || ::fstat(file.fd.get(), &file.status) != 0) {
    return errno == ELOOP ? failure(name + " is a symlink: expected a regular file")
                          : system_error("cannot open " + name);
  }
  if (!S_ISREG(file.status.st_mode)) {
    return failure(name + " is not a regular file");
  }
  if (file.status.st_uid != owner) {
    return failure(
        fmt::format("{} belongs to user {}: expected user {}", name, file.status.st_uid, owner));
  }
  return file;
}

MappedFile::MappedFile() = default;
MappedFile::MappedFile(MappedFile&&) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&&) noexcept = default;
MappedFile::~MappedFile() = default;

int make_room(int fd, std::size_t begin, std::size_t bytes) {
  int error = 0;
  do {
    error = ::posix_fallocate(fd, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

Result<MappedFile> MappedFile::map(const std::string& path, Access access, std::size_t bytes) {
  const int flags = (access == Access::kRead ? O_RDONLY : O_RDWR) | O_NOCTTY;
  UniqueFd file = open_file(path.c_str(), flags);
  const std::string name = fmt::format("'{}'", path);
  return file ? map(std::move(file), access, bytes, name) : system_error("cannot map " + name);
}

Result<MappedFile> MappedFile::map(UniqueFd file, Access access, std::size_t bytes,
                                   const std::string& name) {
  MappedFile mapped;
  mapped.file_ = std::move(file);
  const OpenFile open{mapped.file_.get(), access == Access::kRead ? bi::read_only : bi::read_write};
  try {
    mapped.region_ = std::make_unique<bi::mapped_region>(open, open.mode, 0, bytes);
  } catch (const bi::interprocess_exception& error) {
    return system_error("cannot map " + name, error.get_native_error());
  }
  mapped.guard_ = std::make_unique<BusGuard>(mapped.data(), bytes);
  if (!mapped.guard_->is_armed()) {
    return failure(fmt::format("cannot map {}: too many files are mapped", name), EAGAIN);
  }
  return mapped;
}

void* MappedFile::data() const {
  return region_->get_address();
}

Result<LockState> lock_state(int fd) {
  struct flock lock = exclusive_lock();
  if (::fcntl(fd, F_GETLK, &lock) != 0) {
    return system_error("cannot find the holder of its lock");
  }
  if (lock.l_type == F_UNLCK) {
    return LockState{};
  }
  // l_pid is 0 if the holder is outside this pid namespace, and -1 for a lock of another kind.
  return LockState{true, std::max(lock.l_pid, 0)};
}

Result<FileLock> FileLock::take(const std::string& path) {
  UniqueFd file =
      above_standard_descriptors(open_file(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    return system_error(fmt::format("cannot lock '{}'", path));
  }
  return take(std::move(file), path);
}

bool FileLock::keep() {
  const struct flock lock = exclusive_lock();
  const int file = descriptor();
  return file >= 0 && ::fcntl(file, F_SETLK, &lock) == 0;
}

Result<FileLock> FileLock::take(UniqueFd file, const std::string& path) {
  const struct flock lock = exclusive_lock();
  if (retry_eintr([&] { return ::fcntl(file.get(), F_SETLK, &lock); }) == 0) {
    return FileLock(std::move(file));
  }
  if (errno == EAGAIN || errno == EACCES) {
    return failure(fmt::format("'{}' is locked by another process", path), EBUSY);
  }
  return system_error(fmt::format("cannot lock '{}'", path));
}

}  // namespace filetimer
