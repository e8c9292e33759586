// SPDX-License-Identifier: MIT
#include "common/mapped_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/sync/file_lock.hpp>
#include <cstdlib>

namespace filetimer {
namespace {

namespace bi = boost::interprocess;

constexpr int kLeastDescriptorsSearched = 1024;

tl::unexpected<Error> boost_error(std::string_view what, const std::string& path,
                                  const bi::interprocess_exception& error) {
  return system_error(fmt::format("cannot {} '{}'", what, path), error.get_native_error());
}

// Boost opens files without close-on-exec and keeps the descriptor of a lock to itself. All that
// this process has open of the file are ours.
void close_on_exec(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) {
    return;
  }
  const auto mark = [&](int fd) {
    struct stat st {};
    if (::fstat(fd, &st) == 0 && st.st_ino == file.st_ino && st.st_dev == file.st_dev) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  };
  if (DIR* const folder = ::opendir("/proc/self/fd"); folder != nullptr) {
    while (const dirent* const entry = ::readdir(folder)) {
      if (entry->d_name[0] != '.') {
        mark(std::atoi(entry->d_name));
      }
    }
    ::closedir(folder);
    return;
  }
  // Without /proc: the lowest free descriptor is the one that an open gives.
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  for (int fd = 0; fd < std::max(next, kLeastDescriptorsSearched); ++fd) {
    mark(fd);
  }
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
    return boost_error("map", path, error);
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
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd, F_GETLK, &lock) != 0) {
    return system_error("cannot ask who holds its lock");
  }
  if (lock.l_type == F_UNLCK) {
    return LockState{};
  }
  // 0 of the kernel: in a namespace that can't be seen from here; -1: a lock of another kind.
  return LockState{true, std::max(lock.l_pid, 0)};
}

FileLock::FileLock() = default;
FileLock::FileLock(FileLock&&) noexcept = default;
FileLock& FileLock::operator=(FileLock&&) noexcept = default;
FileLock::~FileLock() = default;

Result<FileLock> FileLock::take(const std::string& path) {
  try {
    FileLock taken;
    taken.lock_ = std::make_unique<bi::file_lock>(path.c_str());
    close_on_exec(path);
    if (!taken.lock_->try_lock()) {
      return tl::unexpected<Error>(
          Error{fmt::format("'{}' is locked by another process", path), EBUSY});
    }
    return taken;
  } catch (const bi::interprocess_exception& error) {
    return boost_error("lock", path, error);
  }
}

}  // namespace filetimer
