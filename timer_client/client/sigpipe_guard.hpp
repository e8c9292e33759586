// Suppresses SIGPIPE during a write to a pipe whose reader may exit.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <time.h>

#include "common/posix.hpp"

namespace filetimer {

// Keeps a SIGPIPE that a write of this thread causes from reaching the process, whatever handler
// the process has. A SIGPIPE that was pending before stays pending. (MSG_NOSIGNAL is for sockets
// only, and a library must not set SIG_IGN for the process.)
class SigpipeGuard {
 public:
  SigpipeGuard() {
    ::sigemptyset(&sigpipe_);
    ::sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  ~SigpipeGuard() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // Takes the SIGPIPE of a write that failed with EPIPE.
  void consume() const {
    if (!was_pending_) {
      const timespec at_once{};
      retry_eintr([&] { return ::sigtimedwait(&sigpipe_, nullptr, &at_once); });
    }
  }

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace filetimer
