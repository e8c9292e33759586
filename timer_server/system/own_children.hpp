// Starts children of the server, and reaps them and those that were reparented to it: orphans of
// COMMAND, or of the container in which the server is pid 1. An own child is reaped by its OwnChild
// only, so its exit status is not lost. reap_orphans() reaps all others. Any thread may use this.
// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// How a child ended. Without an exit status and a signal, the status was lost.
struct ChildEnd {
  std::optional<int> exit_status;
  int signal = 0;  // the signal that ended the child; 0: the child exited
};

// Owns a child and its exit status:
//
//   OwnChild child = OwnChild::start([] { return ::fork(); });
//   ...
//   if (const auto end = child.reap()) { ... }
class OwnChild {
 public:
  // Calls `fork`, which returns the pid of a new child, or a number below 1 if it failed.
  // Meanwhile, for a second at most, reap_orphans() reaps nothing: it would not know that the child
  // has an owner.
  static OwnChild start(const std::function<pid_t()>& fork, bool is_helper = false);

  OwnChild() = default;
  OwnChild(OwnChild&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}
  OwnChild& operator=(OwnChild other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(pidfd_, other.pidfd_);
    return *this;  // the end of `other` disowns the child that this one had
  }
  // Leaves a child that has not ended to reap_orphans().
  ~OwnChild() { disown(); }

  // Returns 0 if there is no child, or it was reaped.
  [[nodiscard]] pid_t pid() const { return pid_; }
  explicit operator bool() const { return pid_ > 0; }
  // Is readable when the child has ended. Empty if there are no descriptors.
  [[nodiscard]] const UniqueFd& pidfd() const { return pidfd_; }
  // Sends a signal. The child is not reaped yet, so the pid cannot be another process's.
  void kill(int signal) const {
    if (pid_ > 0) {
      ::kill(pid_, signal);
    }
  }
  // Returns whether the child has ended. Waits for that, at most so long.
  [[nodiscard]] bool has_ended_within(Duration limit) const {
    return is_readable_within(pidfd_.get(), limit);
  }

  // Reaps the child and returns how it ended; its pid may belong to another process afterwards.
  // Returns nothing while the child lives, or a tracer still holds it.
  std::optional<ChildEnd> reap();

 private:
  void disown();
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

// Returns the pids of the own children that were not reaped yet.
std::vector<pid_t> own_children();

// Returns the start time of the server's second own child, if `pid` is the first one: an orphan of
// the server that started before descends from the first child. Returns 0 if `pid` is another
// process or was reaped, or the server has orphans of others: it inherited children by its
// execve(), or is pid 1. The answer holds for orphans that were found before the call.
std::uint64_t only_child_until(pid_t pid);

// Reaps the children that have ended and have no owner. Returns false if it must be called again
// soon, without a SIGCHLD: an own child is being started, or has ended and was not reaped yet.
// waitid() reports that child until it is reaped, and hides the others.
bool reap_orphans(Instant now);

// The settings with which the server was started. The server changes them; its children get them
// as they were.
struct Inheritance {
  sigset_t mask{};
  rlimit files{};
  int policy = 0;  // of scheduling, with SCHED_RESET_ON_FORK if the caller has set that
  sched_param priority{};
  int nice = 0;
  int timer_slack_ns = 0;  // real-time scheduling sets it to 0, also in children
  std::string oom_score_adj;  // a number; empty: the server has not changed it
};
// The first call reads all but the last. main() makes it before the server changes them.
Inheritance& inheritance();

struct ChildStart {
  std::vector<std::string> words;  // the first one is searched in PATH
  std::vector<std::string> environment;
  // Both standard outputs of a child that has a process group of its own, and no further
  // descriptors. -1: the child shares all standard descriptors with the server.
  int output = -1;
  int input = -1;          // the standard input of such a child; -1: it is empty
  bool is_helper = false;  // see is_own_helper()
  bool waits = false;      // for the execve(); so does a helper
};

// Starts a child. A call that waits for its execve(), which a file system may hang, fails with the
// errno of it: it is made on a side thread, or before anything is served. Otherwise a child whose
// execve() fails exits with 127.
Result<OwnChild> start_child(ChildStart start);

// Returns whether `tracer`, the TracerPid of /proc/PID/status, is a stacks helper of this server
// that was not reaped yet; it may have been since TracerPid was read.
bool is_own_helper(pid_t tracer);

// Returns the server's environment with FILETIMER_DIR set to `dir` and TORCHELASTIC_TIMER_FILE to
// `pipe`, and without the variables that are for the server alone.
std::vector<std::string> environment_for_children(const std::string& dir, const std::string& pipe);
// Sets the variable, which then stands in `environment` once; nothing: removes it.
void set_variable(std::vector<std::string>& environment, std::string_view name,
                  std::optional<std::string_view> value);

}  // namespace filetimer
