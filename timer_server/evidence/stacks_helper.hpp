// Starts the stacks helper (timer_server/stacks/main.cpp), reads its answer, and kills it when its
// time is up. A helper that crashes or hangs costs its evidence and nothing else.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/system/mutex.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {

// Returns whether this process may trace every process of its user: Yama's ptrace_scope is 0, or
// the process has CAP_SYS_PTRACE and the scope is below 3.
bool may_trace();
// Returns kStacks if this process may trace others, or at least the processes that allow it (Yama's
// ptrace_scope 1; our clients do). Returns kProc otherwise.
EvidenceLevel most_evidence_allowed();

// A process of the helper, used on a side thread:
//
//   auto helper = StacksHelper::start(pid, start_time, until);   // it reads the worker's libraries
//   ...                                                          // the worker runs on
//   helper->collect(evidence);                                   // the worker is stopped meanwhile
class StacksHelper {
 public:
  // Starts the helper, which lies beside the server's own program or in ../libexec/filetimer. The
  // helper reads the files of the process and does not stop it. The helper ends by `until`.
  static Result<StacksHelper> start(pid_t pid, std::uint64_t start_time, Instant until);
  StacksHelper(StacksHelper&&) = default;
  StacksHelper& operator=(StacksHelper&&) = delete;
  // Kills the helper, unless collect() has.
  ~StacksHelper();

  // Returns whether collect() has left the helper waiting for another worker.
  [[nodiscard]] bool is_idle() const { return is_idle_; }
  // Has an idle helper begin with another process, as start() does. Returns false if it has ended.
  bool begin_next(pid_t pid, std::uint64_t start_time, Instant until);

  // Returns when the helper ends.
  [[nodiscard]] Instant until() const { return until_; }
  // Lets the helper stop the process and read its stacks. Waits for the answer, at most until the
  // helper's time is up. Adds the stacks to `evidence`, or the reason why some are missing. The
  // helper is idle afterwards, or was killed.
  void collect(Evidence& evidence);

 private:
  StacksHelper(OwnChild helper, UniqueFd socket)
      : child_(std::move(helper)), socket_(std::move(socket)) {}
  std::string read_answer(bool& is_in_time);
  // Kills and reaps the helper. Returns how it had ended: "ended with status 3".
  std::string end();

  OwnChild child_;
  UniqueFd socket_;  // the other end is the helper's standard input and standard output
  Instant until_;
  bool is_idle_ = false;
};

// Helpers that are idle. When many workers expire together, the start of a program for each would
// take most of the time. Used on side threads.
class IdleStacksHelpers {
 public:
  // As StacksHelper::start(), with an idle helper if there is one.
  Result<StacksHelper> start(pid_t pid, std::uint64_t start_time, Instant until);
  // So many are kept: with those that were started before a deadline there may be ever more.
  static constexpr std::size_t kMost = 4;
  // Keeps a helper that is idle, or ends it.
  void keep(StacksHelper helper);
  // Ends the helpers.
  void clear();

 private:
  Mutex mutex_;
  std::vector<StacksHelper> helpers_ FILETIMER_GUARDED_BY(mutex_);
};

// Adds the stacks in a helper's answer to the threads of `evidence`. Ignores lines and threads that
// it does not know. Returns false if the answer has no `end` line.
bool parse_stacks(std::string_view answer, Evidence& evidence);

}  // namespace filetimer
