// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tests/sim/kernel.hpp"

namespace filetimer::sim {

Kernel* kernel = nullptr;

namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr Nanos kTick = 2'000;  // that passes with each look at the clock

// The most that a timer takes that is set to expire at once.
constexpr int kRealWaitMs = 10'000;

ucontext_t outside;

}  // namespace

struct Fiber {
  ucontext_t context{};
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* (*start)(void*) = nullptr;
  void* argument = nullptr;
  unsigned long id = 0;
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

Kernel::Kernel() {
  kernel = this;
}

Kernel::~Kernel() {
  kernel = nullptr;
}

void run_fiber() {
  Fiber& self = *kernel->running_;
  if (self.is_main) {
    const int status = kernel->body_();
    kernel->on_server_end(status);
  } else {
    self.start(self.argument);
  }
  self.has_ended = true;
  kernel->wake(&self, true);
  ::setcontext(&outside);
}

bool Kernel::is_main_thread() const {
  return running_ != nullptr && running_->is_main;
}

void Kernel::start_fiber(void* (*start)(void*), void* argument, unsigned long* id) {
  static unsigned long last = 0;
  auto fiber = std::make_unique<Fiber>();
  fiber->start = start;
  fiber->argument = argument;
  fiber->is_main = start == nullptr;
  fiber->id = ++last;
  if (id != nullptr) {
    *id = fiber->id;
  }
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
  start_fiber(nullptr, nullptr, nullptr);
}

void Kernel::drop_server() {
  for (auto& fiber : fibers_) {
    dropped_.push_back(std::move(fiber));
  }
  fibers_.clear();
  timers_.clear();
  ::close_range(STDERR_FILENO + 1, kFirstOfWorld - 1, 0);
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
    is_in_call_of_loop_ = self->is_main && call != Call::kSleep;
    action();
    is_in_call_of_loop_ = false;
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
    on_failure(kind);
  }
  return error;
}

Nanos Kernel::planned_wake() const {
  // In a call of another thread, or at the beginning of its sleep, the loop sleeps.
  if (fibers_.empty() || is_in_call_of_loop_) {
    return now;
  }
  Nanos next = fibers_.front()->is_waiting ? fibers_.front()->until : kNever;
  for (const auto& [fd, when] : timers_) {
    next = std::min(next, when);
  }
  return std::max(next, now);
}

void Kernel::wait(const void* on, Nanos until, int epoll) {
  Fiber& self = *running_;
  self.is_waiting = true;
  self.is_woken = false;
  self.waits_on = on;
  self.until = until;
  self.epoll = epoll;
  ::swapcontext(&self.context, &outside);
}

bool Kernel::was_woken() const {
  return running_->is_woken;
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

void Kernel::join(unsigned long id) {
  const auto found = std::find_if(fibers_.begin(), fibers_.end(),
                                  [id](const auto& fiber) { return fiber->id == id; });
  if (found != fibers_.end() && !(*found)->has_ended) {
    wait(found->get(), kNever);
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
      (void)::poll(&raised, 1, kRealWaitMs);
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

namespace {

Nanos nanos_of(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

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

}  // namespace
}  // namespace filetimer::sim

using namespace filetimer::sim;

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  REAL(clock_gettime);
  if (kernel == nullptr) {
    return call(clock, time);
  }
  kernel->tick();
  const Nanos now = clock == CLOCK_REALTIME            ? kernel->wall()
                    : clock == CLOCK_BOOTTIME          ? kernel->now + kernel->suspended
                    : clock == CLOCK_THREAD_CPUTIME_ID ? kernel->worked
                                                       : kernel->now;
  *time = {now / kSecond, now % kSecond};
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  REAL(nanosleep);
  if (kernel == nullptr || !kernel->is_inside()) {
    return call(time, left);
  }
  kernel->wait(nullptr, kernel->now + nanos_of(*time));
  return 0;
}

int sched_yield() noexcept {
  REAL(sched_yield);
  if (kernel == nullptr || !kernel->is_inside()) {
    return call();
  }
  kernel->wait(nullptr, kernel->now);
  return 0;
}

int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  REAL(epoll_wait);
  if (kernel == nullptr || !kernel->is_inside() || timeout == 0) {
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
  if (kernel == nullptr || !kernel->is_inside()) {
    return call(fd, flags, next, old);
  }
  const Nanos when = nanos_of(next->it_value);
  kernel->set_timer(fd, when == 0                          ? kNever
                        : (flags & TFD_TIMER_ABSTIME) != 0 ? when
                                                           : kernel->now + when);
  const itimerspec off{};
  return call(fd, 0, &off, old);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  REAL(pthread_create);
  if (kernel == nullptr || !kernel->is_inside()) {
    return call(thread, attributes, start, argument);
  }
  kernel->start_fiber(start, argument, thread);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  REAL(pthread_join);
  if (kernel == nullptr || !kernel->is_inside()) {
    return call(thread, result);
  }
  kernel->join(thread);
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  REAL(pthread_detach);
  return kernel == nullptr || !kernel->is_inside() ? call(thread) : 0;
}

// A thread that was stopped with a mutex held keeps the others out.
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_lock);
  if (kernel == nullptr || !kernel->is_inside()) {
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
  kernel->wait(condition, nanos_of(*until));
  const bool is_woken = kernel->was_woken();
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

}  // extern "C"
