// Preloaded into timer_server, injects faults of real file systems. Each fault lasts while the file
// that its variable names exists:
//   BAD_DISK_HANGS      fdatasync() and fsync() do not return
//   BAD_DISK_READ_ONLY  writing to a regular file or opening one for writing fails with EROFS
//   BAD_DISK_HANGS_IN   the file has "FOLDER": lstat(), open(), rename() and unlink() of a file in
//                       that folder do not return; the first call makes the file "FILE.hit"
//   BAD_DISK_AT_LOOK    the file has "PID TIME PATH": PATH is truncated when the server asks for
//                       the stat of PID at TIME (CLOCK_MONOTONIC, ns) or later, its last look
//                       at a worker before the verdict on its page; without PATH PID is killed
//                       then, and its end waited for
//   BAD_DISK_NO_WATCH   epoll_ctl() adds no descriptor: ENOSPC
//   BAD_DISK_ENDLESS    every pipe has more to read: writers that never pause
//   BAD_DISK_NETWORK    the file has a kind in hex, on which every path is for statfs()
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

namespace {

bool is_on(const char* variable) {
  const char* path = std::getenv(variable);
  return path != nullptr && ::access(path, F_OK) == 0;
}

void kill_and_wait(int pid) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0) {
    ::kill(pid, SIGKILL);
    pollfd ended{pidfd, POLLIN, 0};
    ::poll(&ended, 1, -1);
    ::close(pidfd);
  }
}

void cut_or_end_as_told(const std::string& opened) {
  const char* path = std::getenv("BAD_DISK_AT_LOOK");
  std::ifstream fault(path == nullptr ? "" : path);
  int pid = 0;
  long long time = 0;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (!(fault >> pid >> time) || opened != "/proc/" + std::to_string(pid) + "/stat" ||
      now.tv_sec * 1'000'000'000LL + now.tv_nsec < time) {
    return;
  }
  ::unlink(path);
  if (std::string page; fault >> page) {
    (void)!::truncate(page.c_str(), 0);
  } else {
    kill_and_wait(pid);
  }
}

void hang_as_told(const char* touched) {
  const char* fault = std::getenv("BAD_DISK_HANGS_IN");
  std::string folder;
  while (fault != nullptr && std::ifstream(fault) >> folder &&
         std::string_view(touched).starts_with(folder + "/")) {
    const std::string hit = std::string(fault) + ".hit";
    ::close(
        static_cast<int>(::syscall(SYS_openat, AT_FDCWD, hit.c_str(), O_WRONLY | O_CREAT, 0600)));
    ::usleep(2000);
  }
}

int bad_sync(long system_call, int fd) {
  while (is_on("BAD_DISK_HANGS")) {
    ::usleep(2000);
  }
  return static_cast<int>(::syscall(system_call, fd));
}

// Messages on standard error may go to a file, too, which has no fault.
bool is_regular(int fd) {
  struct stat st {};
  return fd > STDERR_FILENO && ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace

extern "C" {

int fdatasync(int fd) {
  return bad_sync(SYS_fdatasync, fd);
}
int fsync(int fd) {
  return bad_sync(SYS_fsync, fd);
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  if (operation == EPOLL_CTL_ADD && is_on("BAD_DISK_NO_WATCH")) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}

int statfs(const char* path, struct statfs* answer) {
  const auto result = static_cast<int>(::syscall(SYS_statfs, path, answer));
  if (is_on("BAD_DISK_NETWORK")) {
    std::ifstream(std::getenv("BAD_DISK_NETWORK")) >> std::hex >> answer->f_type;
  }
  return result;
}

ssize_t read(int fd, void* bytes, size_t count) {
  struct stat st {};
  if (count > 0 && is_on("BAD_DISK_ENDLESS") && ::fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
    std::memset(bytes, 'x', count);
    static_cast<char*>(bytes)[count - 1] = '\n';
    return static_cast<ssize_t>(count);
  }
  return ::syscall(SYS_read, fd, bytes, count);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  if (is_on("BAD_DISK_READ_ONLY") && is_regular(fd)) {
    errno = EROFS;
    return -1;
  }
  return ::syscall(SYS_write, fd, bytes, count);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0U;
  va_end(rest);
  hang_as_told(path);
  cut_or_end_as_told(path);
  struct stat st {};
  const bool special = ::stat(path, &st) == 0 && !S_ISREG(st.st_mode);
  if ((flags & O_ACCMODE) != O_RDONLY && !special && is_on("BAD_DISK_READ_ONLY")) {
    errno = EROFS;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int lstat(const char* path, struct stat* answer) noexcept {
  hang_as_told(path);
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, answer, AT_SYMLINK_NOFOLLOW));
}

int rename(const char* from, const char* to) noexcept {
  hang_as_told(to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int unlink(const char* path) noexcept {
  hang_as_told(path);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int open64(const char* path, int flags, ...) __attribute__((alias("open")));

}  // extern "C"
