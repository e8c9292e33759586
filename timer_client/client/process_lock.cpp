// SPDX-License-Identifier: MIT
#include "timer_client/client/process_lock.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <new>

namespace filetimer {

namespace fork_watch {
namespace {

// Used where the kernel has no MADV_WIPEONFORK (before Linux 4.14, and in some emulations of
// Linux). There only the pthread_atfork handler identifies a child.
constinit std::atomic<unsigned> plain_word{kUnknown};

}  // namespace

constinit std::atomic<unsigned>* word = &plain_word;

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
  word = new (page) std::atomic<unsigned>(kUnknown);
}

void set(unsigned count) {
  word->store(count, std::memory_order_release);  // pairs with the load in begin_noticing()
}

bool begin_noticing() {
  unsigned found = kUnknown;
  if (word->compare_exchange_strong(found, kBusy, std::memory_order_acquire)) {
    return true;
  }
  while (word->load(std::memory_order_acquire) == kBusy) {
    ::sched_yield();
  }
  return false;
}

}  // namespace fork_watch

namespace {

// Made when the library is loaded, as every object that the first connect() needs: a child that is
// forked while another thread makes a function's static object would never get past it.
[[maybe_unused]] const ProcessLock& lock_at_load = ProcessLock::instance();

}  // namespace

ProcessLock& ProcessLock::instance() {
  static ProcessLock& lock = *new ProcessLock;
  return lock;
}

ProcessLock::ProcessLock() {
  fork_watch::start();
  fork_watch::set(fork_count_);
  ::pthread_atfork([] { instance().lock().release(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().become_child(); });
}

// In a child in which no handler has run, no thread holds the lock, even if it is locked.
void ProcessLock::notice_clone() noexcept {
  const unsigned count = fork_watch::count();
  if (count != fork_watch::kUnknown && count != fork_watch::kBusy) [[likely]] {
    return;
  }
  if (fork_watch::begin_noticing()) {
    new (&mutex_) std::mutex;
    mutex_.lock();
    become_child();
  }
}

void ProcessLock::become_child() noexcept {
  ++fork_count_;
  if (child_call_ != nullptr) {
    child_call_();
  }
  fork_watch::set(fork_count_);
  mutex_.unlock();
}

}  // namespace filetimer
