// The thread that writes later the wake-up message for which the pipe had no room. It starts with
// the first such message and ends when nothing has waited for a while; a worker whose server is
// well never has it.
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

  // What the thread does: tries what is due at `now`, and returns when to try again; never: nothing
  // waits. Called with the lock held. Set once.
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
