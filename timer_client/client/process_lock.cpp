// SPDX-License-Identifier: MIT
#include "timer_client/client/process_lock.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <new>

namespace filetimer {

namespace {

// The word in a child before begin_noticing().
constexpr unsigned kUnknown = 0;
// The word while a thread of the child is between begin_noticing() and set().
constexpr unsigned kBusy = ~0U;

// Used where the kernel has no MADV_WIPEONFORK (before Linux 4.14, and in some emulations of
// Linux). There only the pthread_atfork handler identifies a child.
constinit std::atomic<unsigned> plain_word{kUnknown};

void start() {
  constexpr std::size_t kBytes = 4096;
  void* const page =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return;
  }
  if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kBytes);
    return;
  }
  fork_watch::word = new (page) std::atomic<unsigned>(kUnknown);
}

void set(unsigned count) {
  // Pairs with the load in begin_noticing().
  fork_watch::word->store(count, std::memory_order_release);
}

// Returns true in the one thread of a child that must call set(); other threads wait until it has.
bool begin_noticing() {
  unsigned found = kUnknown;
  if (fork_watch::word->compare_exchange_strong(found, kBusy, std::memory_order_acquire)) {
    return true;
  }
  while (fork_watch::word->load(std::memory_order_acquire) == kBusy) {
    ::sched_yield();
  }
  return false;
}

// Made when the library is loaded, as every object that the first connect() needs: a child that is
// forked while another thread makes a function's static object would never get past it. This is
// before the static objects of the program: in a fork the handlers that those have registered run
// while the lock is free, and in a child after become_child().
[[gnu::constructor(101)]] void make_at_load() {
  ProcessLock::instance();
}

}  // namespace

constinit std::atomic<unsigned>* fork_watch::word = &plain_word;

ProcessLock& ProcessLock::instance() {
  static ProcessLock& lock = *new ProcessLock;
  return lock;
}

ProcessLock::ProcessLock() {
  start();
  set(fork_count_);
  ::pthread_atfork([] { instance().lock().release(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().become_child(); });
}

// In a child in which no handler has run, no thread holds the lock, even if it is locked.
void ProcessLock::notice_clone() noexcept {
  const unsigned count = fork_watch::count();
  if (count != kUnknown && count != kBusy) [[likely]] {
    return;
  }
  if (begin_noticing()) {
    new (&mutex_) std::mutex;
    mutex_.lock();
    become_child();
  }
}

void ProcessLock::become_child() noexcept {
  ++fork_count_;
  for (const ChildCall call : child_calls_) {
    call();
  }
  set(fork_count_);
  mutex_.unlock();
}

}  // namespace filetimer
