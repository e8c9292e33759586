// The processes of the simulation, and the calls by which the server reaches them, its files and
// its log.
// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tests/sim/kernel.hpp"

namespace filetimer::sim {

// --- processes ---

MadeProcess& Kernel::start(pid_t pid, MadeProcess* parent, std::string comm) {
  auto process = std::make_unique<MadeProcess>();
  process->pid = pid;
  process->start = static_cast<std::uint64_t>(now / (10 * kMs));
  process->parent = parent;
  process->uid = ::geteuid();
  process->comm = std::move(comm);
  process->stack = 0x7ffd'0000'0000U + processes_.size() * 0x1'0000U;
  const int end = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  process->end_fd = ::fcntl(end, F_DUPFD_CLOEXEC, kFirstOfWorld);
  ::close(end);
  by_pid_[pid] = process.get();
  processes_.push_back(std::move(process));
  return *processes_.back();
}

MadeProcess* Kernel::find(pid_t pid) {
  const auto found = by_pid_.find(pid);
  return found == by_pid_.end() ? nullptr : found->second;
}

void Kernel::end(MadeProcess& process, int status) {
  if (!process.is_alive) {
    return;
  }
  process.is_alive = false;
  process.ended_by = status;
  process.ended_at = now;
  by_pid_.erase(process.pid);
  for (MadeProcess* child : children(process)) {
    child->parent = nullptr;
  }
  ::eventfd_write(process.end_fd, 1);
  on_end(process);
}

std::vector<MadeProcess*> Kernel::children(const MadeProcess& parent) {
  std::vector<MadeProcess*> found;
  for (const auto& process : processes_) {
    if (process->parent == &parent && process->is_alive) {
      found.push_back(process.get());
    }
  }
  return found;
}

void Kernel::send(MadeProcess& process, int signal) {
  if (signal == SIGCONT) {
    process.is_stopped = false;
    resumed(process);
  } else if (signal == SIGSTOP) {
    process.is_stopped = true;
  } else if (signal == SIGKILL) {
    if (process.reaction == Reaction::kUnkillable) {
      process.is_stuck = true;
    } else {
      end(process, -SIGKILL);
    }
  } else if (!process.can_run()) {
    process.pending.push_back(signal);
  } else if (process.reaction == Reaction::kDies) {
    end(process, -signal);
  } else if (process.reaction == Reaction::kReleases) {
    on_caught(process, signal);
  }
}

void Kernel::resumed(MadeProcess& process) {
  if (process.can_run()) {
    for (const int signal : std::exchange(process.pending, {})) {
      send(process, signal);
    }
  }
}

namespace {

template <class Function>
Function* real(Function*& kept, const char* name) {
  if (kept == nullptr) {
    kept = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  }
  return kept;
}
#define REAL(name)                         \
  static decltype(&::name) kept = nullptr; \
  const auto call = real(kept, #name)

// Fails the call if it was chosen to fail.
#define POINT(kind, failed)                                        \
  if (kernel != nullptr) {                                         \
    if (const int error = kernel->point(Call::kind); error != 0) { \
      errno = error;                                               \
      return failed;                                               \
    }                                                              \
  }

bool is_inside() {
  return kernel != nullptr && kernel->is_inside();
}

// --- /proc ---

std::string stat_of(const MadeProcess& process) {
  // Fields 3 to 28 of proc(5): state, ppid, pgrp ... start time (22), vsize, rss ... start of the
  // stack (28).
  return fmt::format("{} ({}) {} {} {} 0 0 0 0 0 0 0 0 {} 0 0 0 0 0 1 0 {} 0 0 0 0 0 {} 0\n",
                     process.pid, process.comm, process.state(),
                     process.parent != nullptr ? process.parent->pid : 1, process.pid,
                     kernel->now / (10 * kMs), process.start, process.stack);
}

std::string status_of(const MadeProcess& process) {
  return fmt::format(
      "Name:\t{}\nState:\t{} (x)\nTracerPid:\t{}\nUid:\t{}\t{}\t{}\t{}\nNSpid:\t{}\n"
      "ShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nSigCgt:\t0000000000000000\n"
      "CapEff:\t0000000000000000\n",
      process.comm, process.state(), process.is_traced ? kTracerPid : 0, process.uid, process.uid,
      process.uid, process.uid, process.pid);
}

// Takes "NUMBER/" from the front of the path.
std::optional<pid_t> take_pid(std::string_view& path) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), pid);
  if (error != std::errc{}) {
    return std::nullopt;
  }
  path.remove_prefix(static_cast<std::size_t>(end - path.data()));
  path.remove_prefix(path.starts_with('/') ? 1 : 0);
  return pid;
}

// Returns the text of a file in /proc or of a cgroup; nothing: it does not exist.
std::optional<std::string> text_of(std::string_view path) {
  if (constexpr std::string_view kGroups = "/sys/fs/cgroup/sim/"; path.starts_with(kGroups)) {
    path.remove_prefix(kGroups.size());
    const auto pid = take_pid(path);
    const MadeProcess* const process = pid ? kernel->find(*pid) : nullptr;
    return process != nullptr && path == "cgroup.events"
               ? std::optional(fmt::format("populated 1\nfrozen {:d}\n", process->is_frozen))
               : std::nullopt;
  }
  path.remove_prefix(std::string_view("/proc/").size());
  const auto pid = take_pid(path);
  const MadeProcess* const process = pid ? kernel->find(*pid) : nullptr;
  if (process == nullptr) {
    return std::nullopt;
  }
  if (path.starts_with("task/")) {
    path.remove_prefix(5);
    (void)take_pid(path);
    if (path == "children") {
      std::string pids;
      for (const MadeProcess* child : kernel->children(*process)) {
        pids += fmt::format("{} ", child->pid);
      }
      return pids;
    }
  }
  return path == "stat"      ? stat_of(*process)
         : path == "status"  ? status_of(*process)
         : path == "cgroup"  ? fmt::format("0::/sim/{}\n", process->pid)
         : path == "cmdline" ? process->comm + '\0'
         : path == "environ" ? std::string("A=B\0", 4)
                             : std::optional<std::string>{};
}

bool is_made_up(const char* path) {
  const std::string_view text = path;
  return text.starts_with("/sys/fs/cgroup/") || text == "/proc" ||
         (text.starts_with("/proc/") && text.size() > 6 && text[6] >= '0' && text[6] <= '9');
}

struct OpenText {
  std::string text;
  std::size_t at = 0;
};
constexpr int kFirstText = 1'000'000;  // descriptors of texts
std::unordered_map<int, OpenText> texts;
int next_text = kFirstText;

int open_text(const char* path) {
  while (kernel->proc_hangs_until > kernel->now && !kernel->is_main_thread()) {
    kernel->wait(nullptr, kernel->proc_hangs_until);
  }
  auto text = text_of(path);
  if (!text) {
    errno = ENOENT;
    return -1;
  }
  texts[next_text] = {std::move(*text), 0};
  return next_text++;
}

struct OpenFolder {
  std::vector<std::string> names;
  std::size_t at = 0;
  dirent entry{};
};
std::unordered_map<const void*, std::unique_ptr<OpenFolder>> folders;

OpenFolder* open_folder(std::string_view path) {
  auto folder = std::make_unique<OpenFolder>();
  if (path == "/proc") {
    for (const auto& process : kernel->all()) {
      if (process->is_alive) {
        folder->names.push_back(fmt::format("{}", process->pid));
      }
    }
  } else {
    path.remove_prefix(6);
    const auto pid = take_pid(path);
    if (!pid || kernel->find(*pid) == nullptr) {
      errno = ENOENT;
      return nullptr;
    }
    if (path == "task") {
      folder->names.push_back(fmt::format("{}", *pid));
    }
  }
  OpenFolder* const opened = folder.get();
  folders[opened] = std::move(folder);
  return opened;
}

// --- the log ---

std::unordered_map<int, bool> is_log;  // by descriptor

// Returns whether a call on the log may go on; otherwise errno has the reason.
bool may_use_log(int fd) {
  if (!is_inside() || !is_log[fd]) {
    return true;
  }
  while (kernel->log_hangs_until > kernel->now) {
    kernel->wait(nullptr, kernel->log_hangs_until);
  }
  errno = kernel->log_errno;
  return kernel->log_errno == 0;
}

int open_with(const char* path, int flags, mode_t mode) {
  REAL(open);
  if (!is_inside()) {
    return call(path, flags, mode);
  }
  if (is_made_up(path)) {
    POINT(kProc, -1);
    return open_text(path);
  }
  if (std::string_view(path) == "/proc/self/oom_score_adj") {
    errno = EACCES;
    return -1;
  }
  POINT(kOpen, -1);
  const int fd = call(path, flags, mode);
  is_log[fd] = path == kernel->log_path && (flags & O_ACCMODE) == O_WRONLY;
  return fd;
}

std::unordered_map<int, MadeProcess*> pidfds;

}  // namespace
}  // namespace filetimer::sim

using namespace filetimer::sim;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_with(path, flags, mode);
}

int close(int fd) {
  REAL(close);
  if (fd >= kFirstText) {
    texts.erase(fd);
    return 0;
  }
  return call(fd);
}

ssize_t read(int fd, void* to, std::size_t bytes) {
  REAL(read);
  const auto text = fd >= kFirstText ? texts.find(fd) : texts.end();
  if (text == texts.end()) {
    return call(fd, to, bytes);
  }
  OpenText& open = text->second;
  const std::size_t count = std::min(bytes, open.text.size() - open.at);
  std::memcpy(to, open.text.data() + open.at, count);
  open.at += count;
  return static_cast<ssize_t>(count);
}

ssize_t write(int fd, const void* from, std::size_t bytes) {
  REAL(write);
  if (is_inside() && fd <= STDERR_FILENO) {
    if (fd == STDOUT_FILENO && kernel->on_ready) {
      std::exchange(kernel->on_ready, nullptr)();
    }
    return kernel->shows_messages ? call(STDERR_FILENO, from, bytes) : static_cast<ssize_t>(bytes);
  }
  if (!may_use_log(fd)) {
    return -1;
  }
  POINT(kWrite, -1);
  return call(fd, from, bytes);
}

ssize_t pwrite(int fd, const void* from, std::size_t bytes, off_t at) {
  REAL(pwrite);
  POINT(kPwrite, -1);
  return call(fd, from, bytes, at);
}

int fdatasync(int fd) {
  if (!may_use_log(fd)) {
    return -1;
  }
  POINT(kSync, -1);
  return 0;
}

int ftruncate(int fd, off_t bytes) noexcept {
  REAL(ftruncate);
  POINT(kTruncate, -1);
  return call(fd, bytes);
}

int posix_fallocate(int fd, off_t from, off_t bytes) {
  REAL(posix_fallocate);
  if (kernel != nullptr) {
    if (const int error = kernel->point(Call::kAllocate); error != 0) {
      return error;
    }
  }
  return call(fd, from, bytes);
}

int unlink(const char* path) noexcept {
  REAL(unlink);
  POINT(kUnlink, -1);
  return call(path);
}

int symlink(const char* target, const char* path) noexcept {
  REAL(symlink);
  POINT(kLink, -1);
  return call(target, path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  REAL(mkdir);
  POINT(kMake, -1);
  return call(path, mode);
}

int mkfifo(const char* path, mode_t mode) noexcept {
  REAL(mkfifo);
  POINT(kMake, -1);
  return call(path, mode);
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  REAL(epoll_ctl);
  if (operation == EPOLL_CTL_ADD) {
    POINT(kEpoll, -1);
  }
  return call(epoll, operation, fd, event);
}

int mlockall(int) noexcept {
  return 0;
}

int access(const char* path, int mode) noexcept {
  REAL(access);
  return is_inside() && std::string_view(path).starts_with("/proc/self/task") ? 0
                                                                              : call(path, mode);
}

ssize_t readlink(const char* path, char* to, std::size_t bytes) noexcept {
  REAL(readlink);
  if (is_inside() && is_made_up(path)) {
    errno = ENOENT;
    return -1;
  }
  return call(path, to, bytes);
}

DIR* opendir(const char* path) {
  REAL(opendir);
  return is_inside() && is_made_up(path) ? reinterpret_cast<DIR*>(open_folder(path)) : call(path);
}

dirent* readdir(DIR* stream) {
  REAL(readdir);
  const auto found = folders.find(stream);
  if (found == folders.end()) {
    return call(stream);
  }
  OpenFolder& folder = *found->second;
  if (folder.at == folder.names.size()) {
    return nullptr;
  }
  std::strncpy(folder.entry.d_name, folder.names[folder.at++].c_str(),
               sizeof folder.entry.d_name - 1);
  return &folder.entry;
}

int closedir(DIR* stream) {
  REAL(closedir);
  return folders.erase(stream) > 0 ? 0 : call(stream);
}

pid_t getpid() noexcept {
  REAL(getpid);
  return is_inside() ? kernel->server_pid() : call();
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  REAL(fcntl);
  struct stat st {};
  if (!is_inside() || command != F_GETLK || ::fstat(fd, &st) != 0) {
    return call(fd, command, argument);
  }
  POINT(kOther, -1);
  const pid_t owner = kernel->owner_of_page(st.st_ino);
  auto* const lock = static_cast<struct flock*>(argument);
  lock->l_type = owner != 0 ? F_WRLCK : F_UNLCK;
  lock->l_pid = owner;
  return 0;
}

int fstatfs(int fd, struct statfs* is_on) noexcept {
  REAL(fstatfs);
  const int result = call(fd, is_on);
  if (is_inside() && is_log[fd]) {
    is_on->f_type = kernel->is_log_on_disk ? EXT4_SUPER_MAGIC : TMPFS_MAGIC;
  }
  return result;
}

long syscall(long number, ...) noexcept {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) {
    argument = va_arg(list, long);
  }
  va_end(list);
  REAL(syscall);
  if (is_inside() && number == SYS_pidfd_open) {
    POINT(kOpenProcess, -1);
    MadeProcess* const process = kernel->find(static_cast<pid_t>(arguments[0]));
    if (process == nullptr) {
      errno = ESRCH;
      return -1;
    }
    const int fd = ::fcntl(process->end_fd, F_DUPFD_CLOEXEC, nullptr);
    pidfds[fd] = process;
    return fd;
  }
  if (is_inside() && number == SYS_pidfd_send_signal) {
    POINT(kSignal, -1);
    MadeProcess& process = *pidfds.at(static_cast<int>(arguments[0]));
    if (!process.is_alive) {
      errno = ESRCH;
      return -1;
    }
    const int signal = static_cast<int>(arguments[1]);
    if (signal != 0) {
      kernel->on_signal(process, signal);
      kernel->send(process, signal);
    }
    return 0;
  }
  return call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
              arguments[5]);
}

}  // extern "C"
