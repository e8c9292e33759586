// The server's side of filetimer-stacks (timer_server/stacks/main.cpp): starts it, tells it what to
// do, reads what it says, and sees to it that it is gone when its time is up. Whatever the helper
// does costs the evidence and no more. On a side thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/own_children.hpp"

namespace filetimer {

// Whether this process may trace any other of its user: Yama's scope 0, or CAP_SYS_PTRACE.
bool may_trace();
// Stacks where this process may trace others, or (Yama's scope 1) at least those that allow it, as
// our own clients do.
EvidenceLevel most_evidence_allowed();

// Whether `tracer`, as TracerPid in /proc/PID/status names it, is a helper of this server: then the
// process is not under a debugger, and runs on in a moment. True for a moment longer than the
// helper lives, so that whoever has read its pid can still ask. In the instant in which a process
// is let go the kernel may name its parent as tracer: look twice before believing in a debugger.
// Any thread.
bool is_own_helper(pid_t tracer);

class StacksHelper {
 public:
  // Finds the program beside our own, or in ../libexec/filetimer, and starts it. It begins to read
  // what it needs to know of the process, and stops nobody yet. It is gone by `until`.
  static Result<StacksHelper> start(pid_t pid, std::uint64_t start_time, Instant until);
  StacksHelper(StacksHelper&& other) noexcept;
  StacksHelper& operator=(StacksHelper&&) = delete;
  // Kills and reaps it, if collect() did not.
  ~StacksHelper();

  // Lets it stop the process, and waits for its answer: at most until its time is up.
  void collect(Evidence& evidence);

 private:
  StacksHelper(OwnChild helper, UniqueFd pidfd, UniqueFd socket, Instant until)
      : child_(std::move(helper)),
        pidfd_(std::move(pidfd)),
        socket_(std::move(socket)),
        until_(until) {}
  std::string read_answer(bool& is_in_time);
  std::string end();

  OwnChild child_;
  UniqueFd pidfd_;
  UniqueFd socket_;  // both its standard input and its standard output
  Instant until_;
};

// What a helper said, put where it belongs; anything else in it is passed over. False when it did
// not come to its end.
bool take_stacks(std::string_view answer, Evidence& evidence);

}  // namespace filetimer
