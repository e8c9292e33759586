// SPDX-License-Identifier: MIT
#include "common/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>

namespace filetimer {
namespace {

namespace bi = boost::interprocess;

struct flock exclusive_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;  // with offset 0 and length 0: the whole file
  return lock;
}

}  // namespace

MappedFile::MappedFile() = default;
MappedFile::MappedFile(MappedFile&&) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&&) noexcept = default;
MappedFile::~MappedFile() = default;

Result<MappedFile> MappedFile::map(const std::string& path, Access access, std::size_t bytes) {
  const bi::mode_t mode = access == Access::kRead ? bi::read_only : bi::read_write;
  try {
    MappedFile mapped;
    mapped.file_ = std::make_unique<bi::file_mapping>(path.c_str(), mode);
    ::fcntl(mapped.file_->get_mapping_handle().handle, F_SETFD, FD_CLOEXEC);
    mapped.region_ = std::make_unique<bi::mapped_region>(*mapped.file_, mode, 0, bytes);
    return mapped;
  } catch (const bi::interprocess_exception& error) {
    return system_error(fmt::format("cannot map '{}'", path), error.get_native_error());
  }
}

void* MappedFile::data() const {
  return region_->get_address();
}

int MappedFile::descriptor() const {
  return file_ ? file_->get_mapping_handle().handle : -1;
}

void MappedFile::close_descriptor() {
  file_.reset();
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
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
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
    return tl::unexpected<Error>(
        Error{fmt::format("'{}' is locked by another process", path), EBUSY});
  }
  return system_error(fmt::format("cannot lock '{}'", path));
}

}  // namespace filetimer
