// The thread that later writes a wake-up message for which the pipe had no room. It starts with the
// first such message and ends when no message has waited for a while. As long as the pipe has room,
// a worker has no such thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>

#include "common/clock.hpp"

namespace filetimer {

// Every member must be called with the ProcessLock held.
class RetryThread {
 public:
  // Never destroyed, as the thread may outlive every static.
  static RetryThread& instance();

  // The work of the thread: tries the messages that are due at `now`, and returns when to try
  // again; Instant::never(): no message waits. Called with the lock held. Set once.
  using Work = Instant (*)(Instant now) noexcept;
  void set_work(Work work) { work_ = work; }

  // Has the thread work no later than `when`. Returns false if the thread cannot be started.
  bool attend(Instant when) noexcept;

 private:
  RetryThread();
  void run();
  void become_child() noexcept;

  Work work_ = nullptr;
  std::condition_variable wake_;
  bool is_running_ = false;
  Instant sleeps_until_;
};

}  // namespace filetimer
