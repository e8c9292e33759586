// SPDX-License-Identifier: MIT
#include "common/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/interprocess/detail/os_file_functions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>

namespace filetimer {
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

}  // namespace

Result<OwnFile> open_own_file(const std::string& path, int access, std::string name, uid_t owner) {
  if (name.empty()) {
    name = fmt::format("'{}'", path);
  }
  OwnFile file;
  file.fd.reset(retry_eintr([&] {
    return ::open(path.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  }));
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
  const int flags = (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY;
  UniqueFd file(retry_eintr([&] { return ::open(path.c_str(), flags); }));
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
  UniqueFd file = above_standard_descriptors(UniqueFd(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); })));
  if (!file) {
    return system_error(fmt::format("cannot lock '{}'", path));
  }
  return take(std::move(file), path);
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
