// The threads of one process, held still for a moment by ptrace.
//
// PTRACE_SEIZE and PTRACE_INTERRUPT, never PTRACE_ATTACH: ATTACH sends a SIGSTOP, and a tracer that
// is killed before it could take that back leaves the process stopped for good. A seized process
// whose tracer dies, at whatever moment, is let go by the kernel and runs on, neither stopped nor
// traced. For the same reason no ptrace option is set, PTRACE_O_EXITKILL least of all.
//
// Used by the helper's one thread: ptrace requests must come from the thread that seized.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

#include "common/result.hpp"

namespace filetimer::stacks {

class Tracees {
 public:
  explicit Tracees(pid_t pid) : pid_(pid) {}

  // Takes hold of the process's threads, the main one first, at most kMaxEvidenceThreads. They run
  // on. Fails when none could be had.
  Status seize();
  // Stops them; gives up on those that have not stopped when the bound has passed (a thread in
  // uninterruptible sleep does not). SIGCHLD must be blocked.
  void stop(std::chrono::nanoseconds bound);
  // Lets all of them run on that have stopped by now. To be called again as long as it says false:
  // there are some that may stop yet.
  bool release();

  [[nodiscard]] std::vector<pid_t> stopped() const;
  // Seized, alive, and not stopped.
  [[nodiscard]] std::vector<pid_t> running() const;

 private:
  enum class State { kRunning, kStopped, kGone };
  struct Tracee {
    pid_t tid = 0;
    State state = State::kRunning;
    int signal = 0;  // it was about to get this one: handed back when it is let go
  };
  void take_news();

  const pid_t pid_;
  std::vector<Tracee> tracees_;
};

}  // namespace filetimer::stacks
