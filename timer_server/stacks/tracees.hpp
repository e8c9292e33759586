// The threads of one process, stopped for a moment by ptrace.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

#include "common/result.hpp"

namespace filetimer::stacks {

// Stops the threads so that the worker survives a helper that is killed at any moment. PTRACE_SEIZE
// and PTRACE_INTERRUPT are used, never PTRACE_ATTACH: that sends SIGSTOP, and a tracer that is
// killed before it resumes the process leaves it stopped for good. When the tracer of a seized
// process exits, the kernel detaches it and the process runs on, neither stopped nor traced. For
// the same reason no ptrace option is set, PTRACE_O_EXITKILL in particular.
//
// All members are called from one thread: ptrace requests must come from the thread that seized.
class Tracees {
 public:
  explicit Tracees(pid_t pid) : pid_(pid) {}

  // Seizes the threads of the process, the main one first, at most kMaxEvidenceThreads. The threads
  // run on. Fails if no thread could be seized.
  Status seize();
  // Stops the threads. Returns when all have stopped, or after `bound`: a thread in uninterruptible
  // sleep does not stop. SIGCHLD must be blocked.
  void stop(std::chrono::nanoseconds bound);
  // Resumes the threads that have stopped by now. Returns false if others may still stop: then it
  // must be called again.
  bool release();

  [[nodiscard]] std::vector<pid_t> stopped() const;
  // Returns the seized threads that have neither stopped nor exited.
  [[nodiscard]] std::vector<pid_t> running() const;

 private:
  enum class State { kRunning, kStopped, kGone };
  struct Tracee {
    pid_t tid = 0;
    State state = State::kRunning;
    int signal = 0;  // the signal that stopped the thread; passed on when it is resumed
  };
  // Notes which threads have stopped or exited.
  void read_wait_statuses();

  const pid_t pid_;
  std::vector<Tracee> tracees_;
};

}  // namespace filetimer::stacks
