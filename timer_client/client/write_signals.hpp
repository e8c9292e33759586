// Writes that raise no signal in the program around the client.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/posix.hpp"

namespace filetimer {

// While it lives, blocks the signals that a write of this thread may cause: SIGPIPE; SIGXFSZ, when
// the file has reached RLIMIT_FSIZE; and SIGTTOU, which stops a job in the background under `stty
// tostop`. While SIGTTOU is blocked, the terminal takes the text. A signal that was pending before
// stays pending. (MSG_NOSIGNAL is for sockets only, and a library must not set SIG_IGN.)
class WriteSignalsGuard : NotCopied {
 public:
  WriteSignalsGuard() {
    const sigset_t blocked = signal_set({SIGPIPE, SIGXFSZ, SIGTTOU});
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    sigset_t pending;
    ::sigpending(&pending);
    ::sigemptyset(&caused_);
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (::sigismember(&pending, signal) == 0) {
        ::sigaddset(&caused_, signal);
      }
    }
  }
  ~WriteSignalsGuard() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // Takes the signal of a write that failed with EPIPE or EFBIG.
  void consume() const {
    const timespec at_once{};
    (void)::sigtimedwait(&caused_, nullptr, &at_once);
  }

 private:
  sigset_t caused_{};
  sigset_t before_{};
};

}  // namespace filetimer
