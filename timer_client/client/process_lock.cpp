// SPDX-License-Identifier: MIT
#include "timer_client/client/process_lock.hpp"

#include <pthread.h>

#include <new>

namespace filetimer {

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

void ProcessLock::call_in_children(ChildCall call) {
  calls_.at(call_count_++) = call;
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
  for (std::size_t i = 0; i < call_count_; ++i) {
    calls_[i]();
  }
  fork_watch::set(fork_count_);
  mutex_.unlock();
}

}  // namespace filetimer
