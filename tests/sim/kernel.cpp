// SPDX-License-Identifier: MIT
#include "tests/sim/kernel.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

namespace filetimer::sim {

Kernel* kernel = nullptr;

namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr Nanos kTick = 2'000;         // that passes with each look at the clock
constexpr int kTimerLimitMs = 10'000;  // that a real timer takes which is set to expire at once
constexpr pid_t kTracerPid = 77;
constexpr pid_t kFirstChild = 50'000;
constexpr Nanos kChildTime = 50 * kMs;  // that a child of the server takes

ucontext_t outside;

}  // namespace

struct Fiber {
  ucontext_t context{};
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* (*start)(void*) = nullptr;
  void* argument = nullptr;
  bool is_main = false;
  bool is_waiting = false;
  bool is_woken = false;
  bool has_ended = false;
  const void* waits_on = nullptr;
  Nanos until = kNever;
  int epoll = -1;

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() { ::munmap(stack, kStackBytes); }
};

Kernel::Kernel(std::string its_root) : root(std::move(its_root)) {
  std::filesystem::create_directories(root + "/proc");
  kernel = this;
}

Kernel::~Kernel() {
  kernel = nullptr;
}

// --- threads ---

void run_fiber() {
  Fiber& self = *kernel->running_;
  if (self.is_main) {
    kernel->on_server_end(kernel->body_());
  } else {
    self.start(self.argument);
  }
  self.has_ended = true;
  ::setcontext(&outside);
}

bool Kernel::is_main_thread() const {
  return running_ != nullptr && running_->is_main;
}

void Kernel::start_fiber(void* (*start)(void*), void* argument) {
  auto fiber = std::make_unique<Fiber>();
  fiber->start = start;
  fiber->argument = argument;
  fiber->is_main = start == nullptr;
  ::getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  ::makecontext(&fiber->context, run_fiber, 0);
  fibers_.push_back(std::move(fiber));
}

void Kernel::start_server(pid_t pid, std::function<int()> body) {
  server_pid_ = pid;
  body_ = std::move(body);
  idle_at_ = now;
  start_fiber(nullptr, nullptr);
}

void Kernel::drop_server() {
  for (auto& fiber : fibers_) {
    dropped_.push_back(std::move(fiber));
  }
  fibers_.clear();
  timers_.clear();
  ::close_range(STDERR_FILENO + 1, kFirstOfWorld - 1, 0);
}

void Kernel::tell_of_signal(Process& process, int signal) {
  Fiber* const self = std::exchange(running_, nullptr);
  on_signal(process, signal);
  running_ = self;
}

void Kernel::tick() {
  if (running_ != nullptr) {
    now += kTick;
    worked += kTick;
  }
}

void Kernel::at_call(int n, std::function<void()> action) {
  at_calls_.emplace(calls_ + n, std::move(action));
}

int Kernel::point(Call call) {
  if (running_ == nullptr) {
    return 0;
  }
  ++calls_;
  while (!at_calls_.empty() && at_calls_.begin()->first <= calls_) {
    const std::function<void()> action = std::move(at_calls_.begin()->second);
    at_calls_.erase(at_calls_.begin());
    Fiber* const self = std::exchange(running_, nullptr);
    const int saved_errno = errno;
    now += kTick;  // two scopes are not opened in the same nanosecond
    present = call;
    action();
    present = Call::kSleep;
    running_ = self;
    errno = saved_errno;
    if (fibers_.empty()) {
      ::setcontext(&outside);  // the server was killed: this call never returns
    }
    while (is_server_halted) {
      wait(nullptr, now, -1);  // the server was stopped in the middle of its work
    }
  }
  const int kind = static_cast<int>(call);
  const int error = kind >= kCalls ? 0 : std::exchange(failing[kind], 0);
  if (error != 0) {
    on_failure();
  }
  return error;
}

bool Kernel::wait(const void* on, Nanos until, int epoll) {
  Fiber& self = *running_;
  self.is_waiting = true;
  self.is_woken = false;
  self.waits_on = on;
  self.until = until;
  self.epoll = epoll;
  ::swapcontext(&self.context, &outside);
  return self.is_woken;
}

void Kernel::wake(const void* on, bool all) {
  for (const auto& fiber : fibers_) {
    if (fiber->is_waiting && fiber->waits_on == on && !fiber->is_woken) {
      fiber->is_woken = true;
      if (!all) {
        return;
      }
    }
  }
}

bool Kernel::is_ready(const Fiber& fiber) const {
  if (fiber.has_ended) {
    return false;
  }
  if (!fiber.is_waiting || fiber.is_woken || fiber.until <= now) {
    return true;
  }
  pollfd ready{fiber.epoll, POLLIN, 0};
  return fiber.epoll >= 0 && ::poll(&ready, 1, 0) > 0;
}

bool Kernel::run_ready() {
  raise_timers();
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = *fibers_[i];
    if (!is_ready(fiber)) {
      continue;
    }
    fiber.is_waiting = false;
    running_ = &fiber;
    ::swapcontext(&outside, &fiber.context);
    running_ = nullptr;
    if (!fibers_.empty() && fibers_.front()->has_ended) {
      drop_server();  // the process has exited, and its threads with it
    }
    return true;
  }
  return false;
}

void Kernel::raise_timers() {
  for (auto& [fd, when] : timers_) {
    if (when <= now) {
      when = kNever;
      const itimerspec at_once{{0, 0}, {0, 1}};
      ::timerfd_settime(fd, 0, &at_once, nullptr);
      pollfd raised{fd, POLLIN, 0};
      (void)::poll(&raised, 1, kTimerLimitMs);
    }
  }
}

void Kernel::run_until(Nanos time) {
  for (;;) {
    if (!events_.empty() && events_.begin()->first <= now) {
      const std::function<void()> event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
      continue;
    }
    if (!is_server_halted && run_ready()) {
      if (now - idle_at_ > kSecond) {
        has_spun = true;
        return;
      }
      continue;
    }
    all_read_at_ = is_server_halted || fibers_.empty() ? all_read_at_ : now;
    Nanos next = events_.empty() ? time : std::min(time, events_.begin()->first);
    if (!is_server_halted) {
      for (const auto& fiber : fibers_) {
        next = std::min(next, fiber->has_ended ? kNever : fiber->until);
      }
      for (const auto& [fd, when] : timers_) {
        next = std::min(next, when);
      }
    }
    if (next <= now && now >= time) {
      return;
    }
    now = std::max(now, next);
    idle_at_ = now;
  }
}

// --- processes ---

Process& Kernel::start(pid_t pid, Process* parent, std::string name) {
  auto process = std::make_unique<Process>();
  process->pid = pid;
  process->start = static_cast<std::uint64_t>(now / (10 * kMs));
  process->parent = parent;
  process->name = std::move(name);
  process->stack = 0x7ffd'0000'0000U + processes.size() * 0x1'0000U;
  const int end = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  process->end_fd = ::fcntl(end, F_DUPFD_CLOEXEC, kFirstOfWorld);
  ::close(end);
  Fiber* const caller = std::exchange(running_, nullptr);  // these are no calls of the server
  std::filesystem::create_directories(fmt::format("{0}/proc/{1}/task/{1}", root, pid));
  running_ = caller;
  processes.push_back(std::move(process));
  return *processes.back();
}

Process* Kernel::find(pid_t pid) {
  const auto found = std::ranges::find_if(
      processes, [pid](const auto& each) { return each->pid == pid && each->is_alive; });
  return found == processes.end() ? nullptr : found->get();
}

void Kernel::end(Process& process, int status) {
  if (!process.is_alive) {
    return;
  }
  process.is_alive = false;
  process.ended_by = status;
  for (const auto& each : processes) {
    each->parent = each->parent == &process ? nullptr : each->parent;
  }
  Fiber* const caller = std::exchange(running_, nullptr);
  std::filesystem::remove_all(fmt::format("{}/proc/{}", root, process.pid));
  running_ = caller;
  ::eventfd_write(process.end_fd, 1);
  on_end(process);
}

void Kernel::send(Process& process, int signal) {
  if (signal == SIGCONT) {
    process.is_halted[0] = false;
    resumed(process);
  } else if (signal == SIGSTOP) {
    process.is_halted[0] = true;
  } else if (signal == SIGKILL && process.reaction == Reaction::kUnkillable) {
    process.is_stuck = true;
  } else if (signal == SIGKILL) {
    end(process, -SIGKILL);
  } else if (!process.can_run()) {
    process.pending.push_back(signal);
  } else if (process.reaction == Reaction::kDies) {
    end(process, -signal);
  } else if (process.reaction == Reaction::kReleases) {
    on_caught(process);
  }
}

void Kernel::resumed(Process& process) {
  if (process.can_run()) {
    for (const int signal : std::exchange(process.pending, {})) {
      send(process, signal);
    }
  }
}

namespace {

bool is_inside() {
  return kernel != nullptr && kernel->is_inside();
}

bool is_made_up(std::string_view path) {
  return path.starts_with("/sys/fs/cgroup/") || path == "/proc" ||
         (path.starts_with("/proc/") && path.size() > 6 && path[6] >= '0' && path[6] <= '9');
}

// Returns the text of a file in /proc or of a cgroup; nothing: it does not exist.
std::optional<std::string> text_of(const char* path) {
  int pid = 0;
  int tid = 0;
  char file[32] = "";
  if (std::sscanf(path, "/proc/%d/task/%d/%31s", &pid, &tid, file) != 3 &&
      std::sscanf(path, "/proc/%d/%31s", &pid, file) != 2 &&
      std::sscanf(path, "/sys/fs/cgroup/sim/%d/%31s", &pid, file) != 2) {
    return std::nullopt;
  }
  const std::string_view name = file;
  const Process* const process = kernel->find(pid);
  if (process == nullptr) {
    return std::nullopt;
  }
  const char state = process->is_stuck       ? 'D'
                     : process->is_halted[0] ? 'T'
                     : process->is_halted[2] ? 't'
                                             : 'S';
  if (name == "stat") {
    // Fields 3 to 28 of proc(5): state, ppid ... start time (22) ... start of the stack (28).
    return fmt::format("{} ({}) {} {} {} 0 0 0 0 0 0 0 0 {} 0 0 0 0 0 1 0 {} 0 0 0 0 0 {} 0\n", pid,
                       process->name, state, process->parent != nullptr ? process->parent->pid : 1,
                       pid, kernel->now / (10 * kMs), process->start, process->stack);
  }
  if (name == "status") {
    return fmt::format(
        "Name:\t{0}\nState:\t{1} (x)\nTracerPid:\t{2}\nUid:\t{3}\t{3}\t{3}\t{3}\nNSpid:\t{4}\n"
        "ShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nSigCgt:\t0000000000000000\n"
        "CapEff:\t0000000000000000\n",
        process->name, state, process->is_halted[2] ? kTracerPid : 0, ::geteuid(), pid);
  }
  if (name == "children") {
    std::string pids;
    for (const auto& each : kernel->processes) {
      pids += each->parent == process && each->is_alive ? fmt::format("{} ", each->pid) : "";
    }
    return pids;
  }
  return name == "cgroup.events" ? fmt::format("populated 1\nfrozen {:d}\n", process->is_halted[1])
         : name == "cgroup"      ? fmt::format("0::/sim/{}\n", pid)
         : name == "cmdline"     ? process->name + '\0'
         : name == "environ"     ? std::string("A=B\0", 4)
                                 : std::optional<std::string>{};
}

int open_text(const char* path) {
  while (kernel->proc_hangs_until > kernel->now && is_inside() && !kernel->is_main_thread()) {
    kernel->wait(nullptr, kernel->proc_hangs_until);
  }
  const auto text = text_of(path);
  const int fd = text ? ::memfd_create("text", MFD_CLOEXEC) : -1;
  if (fd < 0) {
    errno = ENOENT;
    return -1;
  }
  (void)::syscall(SYS_write, fd, text->data(), text->size());
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::map<int, bool> is_log;  // by descriptor
std::map<int, Process*> pidfds;

bool is_file(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

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

Nanos nanos_of(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

}  // namespace
}  // namespace filetimer::sim

using namespace filetimer::sim;

// The function of libc that the present one replaces.
#define REAL(name) \
  static const auto call = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))  // NOLINT

// Fails the call if it was chosen to fail.
#define POINT(kind)                                                \
  if (kernel != nullptr) {                                         \
    if (const int error = kernel->point(Call::kind); error != 0) { \
      errno = error;                                               \
      return -1;                                                   \
    }                                                              \
  }

// Likewise of a call that may transfer a part of the bytes: half of those of a file.
#define POINT_OF_BYTES(kind)                                    \
  if (kernel != nullptr) {                                      \
    const int error = kernel->point(Call::kind);                \
    if (error != 0 && error != kShort) {                        \
      errno = error;                                            \
      return -1;                                                \
    }                                                           \
    bytes = error == kShort && is_file(fd) ? bytes / 2 : bytes; \
  }

// A function that only fails if it was chosen to.
#define FAILING(result, name, kind, parameters, ...) \
  result name parameters {                           \
    REAL(name);                                      \
    POINT(kind);                                     \
    return call(__VA_ARGS__);                        \
  }

extern "C" {

// --- time and threads ---

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  REAL(clock_gettime);
  if (kernel == nullptr) {
    return call(clock, time);
  }
  kernel->tick();
  Nanos now = clock == CLOCK_THREAD_CPUTIME_ID ? kernel->worked : kernel->now;
  now += clock == CLOCK_REALTIME || clock == CLOCK_BOOTTIME ? kernel->suspended : 0;
  now += clock == CLOCK_REALTIME ? kernel->wall_offset : 0;
  *time = {now / kSecond, now % kSecond};
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  REAL(nanosleep);
  if (!is_inside()) {
    return call(time, left);
  }
  kernel->wait(nullptr, kernel->now + nanos_of(*time));
  return 0;
}

int sched_yield() noexcept {
  REAL(sched_yield);
  if (!is_inside()) {
    return call();
  }
  kernel->wait(nullptr, kernel->now);
  return 0;
}

int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  REAL(epoll_wait);
  if (!is_inside() || timeout == 0) {
    return call(epoll, events, most, timeout);
  }
  kernel->point(Call::kSleep);
  const int ready = call(epoll, events, most, 0);
  if (ready != 0) {
    return ready;
  }
  kernel->wait(nullptr, timeout < 0 ? kNever : kernel->now + timeout * kMs, epoll);
  return call(epoll, events, most, 0);
}

int timerfd_settime(int fd, int flags, const itimerspec* next, itimerspec* old) noexcept {
  REAL(timerfd_settime);
  if (!is_inside()) {
    return call(fd, flags, next, old);
  }
  const Nanos when = nanos_of(next->it_value);
  const Nanos begin = (flags & TFD_TIMER_ABSTIME) != 0 ? 0 : kernel->now;
  kernel->set_timer(fd, when == 0 ? kNever : begin + when);
  const itimerspec off{};
  return call(fd, 0, &off, old);
}

// A worker starts no threads. The server's are all detached.
int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*),
                   void* argument) {
  if (!is_inside()) {
    return EAGAIN;
  }
  static pthread_t last = 0;
  *thread = ++last;
  kernel->start_fiber(start, argument);
  return 0;
}

int pthread_detach(pthread_t) noexcept {
  return 0;
}

// A thread that was stopped with a mutex held keeps the others out.
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_lock);
  if (!is_inside()) {
    return call(mutex);
  }
  while (pthread_mutex_trylock(mutex) != 0) {
    kernel->wait(mutex, kNever);
  }
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_unlock);
  if (kernel != nullptr) {
    kernel->wake(mutex, true);
  }
  return call(mutex);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  pthread_mutex_unlock(mutex);
  kernel->wait(condition, kNever);
  pthread_mutex_lock(mutex);
  return 0;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t,
                           const timespec* until) {
  pthread_mutex_unlock(mutex);
  const bool is_woken = kernel->wait(condition, nanos_of(*until));
  pthread_mutex_lock(mutex);
  return is_woken ? 0 : ETIMEDOUT;
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (kernel != nullptr) {
    kernel->wake(condition, false);
  }
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (kernel != nullptr) {
    kernel->wake(condition, true);
  }
  return 0;
}

// --- files ---

ssize_t pwrite(int fd, const void* from, std::size_t bytes, off_t at) {
  REAL(pwrite);
  POINT_OF_BYTES(kPwrite);
  return call(fd, from, bytes, at);
}

ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) {
  REAL(pread);
  POINT_OF_BYTES(kRead);
  return call(fd, to, bytes, at);
}

FAILING(int, ftruncate, kTruncate, (int fd, off_t bytes) noexcept, fd, bytes)
FAILING(int, unlink, kUnlink, (const char* path) noexcept, path)
FAILING(int, symlink, kLink, (const char* target, const char* path) noexcept, target, path)
FAILING(int, mkdir, kMake, (const char* path, mode_t mode) noexcept, path, mode)
FAILING(int, mkfifo, kMake, (const char* path, mode_t mode) noexcept, path, mode)

int posix_fallocate(int fd, off_t from, off_t bytes) {
  REAL(posix_fallocate);
  const int error = kernel != nullptr ? kernel->point(Call::kAllocate) : 0;
  return error != 0 ? error : call(fd, from, bytes);
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  REAL(epoll_ctl);
  if (operation == EPOLL_CTL_ADD) {
    POINT(kEpoll);
  }
  return call(epoll, operation, fd, event);
}

int open(const char* path, int flags, ...) {
  REAL(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const std::string_view text = path;
  if (kernel != nullptr && kernel->self != nullptr) {
    const int fd = text == "/proc/self/task/../stat"
                       ? open_text(fmt::format("/proc/{}/stat", kernel->self->pid).c_str())
                       : call(path, flags, mode);
    const int above = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstOfWorld);
    if (fd >= 0) {
      ::close(fd);
    }
    return above;
  }
  if (!is_inside()) {
    return call(path, flags, mode);
  }
  if (is_made_up(text)) {
    POINT(kProc);
    return open_text(path);
  }
  if (text == "/proc/self/oom_score_adj") {
    errno = EACCES;
    return -1;
  }
  POINT(kOpen);
  const int fd = call(path, flags, mode);
  is_log[fd] = path == kernel->log_path && (flags & O_ACCMODE) == O_WRONLY;
  return fd;
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
  POINT_OF_BYTES(kWrite);
  return call(fd, from, bytes);
}

int fdatasync(int fd) {
  if (!may_use_log(fd)) {
    return -1;
  }
  POINT(kSync);
  return 0;
}

void* mmap(void* at, size_t bytes, int access, int flags, int fd, off_t from) noexcept {
  REAL(mmap);
  errno = fd >= 0 && kernel != nullptr ? kernel->point(Call::kAllocate) : 0;
  return errno != 0 ? MAP_FAILED : call(at, bytes, access, flags, fd, from);
}

DIR* opendir(const char* path) {
  REAL(opendir);
  if (!is_inside()) {
    return call(path);
  }
  errno = kernel->point(is_made_up(path) ? Call::kProc : Call::kOpen);
  return errno != 0 ? nullptr : call(is_made_up(path) ? (kernel->root + path).c_str() : path);
}

dirent* readdir(DIR* folder) {
  REAL(readdir);
  errno = is_inside() ? kernel->point(Call::kRead) : 0;
  return errno != 0 ? nullptr : call(folder);
}

ssize_t readlink(const char* path, char* to, std::size_t bytes) noexcept {
  REAL(readlink);
  if (is_inside() && std::string_view(path) == "/proc/self") {
    return std::snprintf(to, bytes, "%d", kernel->server_pid());
  }
  POINT(kRead);
  return is_inside() && is_made_up(path) ? call((kernel->root + path).c_str(), to, bytes)
                                         : call(path, to, bytes);
}

int access(const char* path, int mode) noexcept {
  REAL(access);
  const bool is_there = is_inside() && std::string_view(path).starts_with("/proc/self/task");
  return is_there ? 0 : call(path, mode);
}

int mlockall(int) noexcept {
  return 0;
}

// --- processes ---

pid_t getpid() noexcept {
  REAL(getpid);
  return is_inside()                                    ? kernel->server_pid()
         : kernel != nullptr && kernel->self != nullptr ? kernel->self->pid
                                                        : call();
}

pid_t gettid() noexcept {
  REAL(gettid);
  return kernel != nullptr && kernel->self != nullptr ? kernel->self->pid : call();
}

// A child of the server, such as a hook, does nothing and ends.
pid_t fork() noexcept {
  REAL(fork);
  if (!is_inside()) {
    return call();
  }
  POINT(kFork);
  static pid_t last = kFirstChild;
  Process& child = kernel->start(++last, nullptr, kServersChild);
  kernel->at(kernel->now + kChildTime, [&child] { kernel->end(child, 0); });
  return child.pid;
}

int kill(pid_t, int) noexcept {
  return 0;
}

int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  REAL(waitid);
  if (!is_inside()) {
    return call(type, id, info, options);
  }
  const auto found = std::ranges::find_if(kernel->processes, [id](const auto& each) {
    return each->pid == static_cast<pid_t>(id) && each->name == kServersChild;
  });
  if (type != P_PID || found == kernel->processes.end()) {
    errno = ECHILD;
    return -1;
  }
  *info = {};
  info->si_pid = (*found)->is_alive ? 0 : (*found)->pid;
  info->si_code = CLD_EXITED;
  return 0;
}

int fcntl(int fd, int command, ...) {
  REAL(fcntl);
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  struct stat st {};
  if (!is_inside() || command != F_GETLK || ::fstat(fd, &st) != 0) {
    return call(fd, command, argument);
  }
  POINT(kLock);
  const pid_t owner = kernel->owner_of_page(st.st_ino);
  auto* const lock = static_cast<struct flock*>(argument);
  lock->l_type = owner != 0 ? F_WRLCK : F_UNLCK;
  lock->l_pid = owner;
  return 0;
}

long syscall(long number, ...) noexcept {
  REAL(syscall);
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) {
    argument = va_arg(list, long);
  }
  va_end(list);
  const long operation = arguments[1] & FUTEX_CMD_MASK;
  if (is_inside() && number == SYS_futex &&
      (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET)) {
    kernel->wait(nullptr, kernel->now + kMs);  // of a std::future, which looks again
    return 0;
  }
  const bool is_ours = is_inside() && (number == SYS_pidfd_open || number == SYS_pidfd_send_signal);
  if (!is_ours) {
    return call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                arguments[5]);
  }
  const int first = static_cast<int>(arguments[0]);
  const int signal = static_cast<int>(arguments[1]);
  if (number == SYS_pidfd_open) {
    POINT(kOpenProcess);
  } else {
    POINT(kSignal);
  }
  Process* const process = number == SYS_pidfd_open ? kernel->find(first) : pidfds.at(first);
  if (process == nullptr || !process->is_alive) {
    errno = ESRCH;
    return -1;
  }
  if (number == SYS_pidfd_open) {
    const int fd = ::fcntl(process->end_fd, F_DUPFD_CLOEXEC, nullptr);
    pidfds[fd] = process;
    return fd;
  }
  if (signal != 0) {
    kernel->tell_of_signal(*process, signal);
    kernel->send(*process, signal);
  }
  return 0;
}

}  // extern "C"
