// The children that the server has started, and those that were reparented to it: orphans of
// COMMAND, or of the container in which the server is pid 1. An own child is reaped by its OwnChild
// only, so its exit status is not lost. reap_orphans() reaps all others. Any thread may use this.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.hpp"

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
  static OwnChild start(const std::function<pid_t()>& fork);

  OwnChild() = default;
  OwnChild(OwnChild&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  OwnChild& operator=(OwnChild&& other) noexcept;
  OwnChild(const OwnChild&) = delete;
  OwnChild& operator=(const OwnChild&) = delete;
  // Leaves a child that has not ended to reap_orphans().
  ~OwnChild() { disown(); }

  // Returns 0 if there is no child, or it was reaped.
  [[nodiscard]] pid_t pid() const { return pid_; }
  explicit operator bool() const { return pid_ > 0; }

  // Reaps the child and returns how it ended; its pid may belong to another process afterwards.
  // Returns nothing while the child lives, or a tracer still holds it.
  std::optional<ChildEnd> reap();
  // Waits for the end of the child without a time limit and reaps it. Not for the loop thread.
  ChildEnd wait();

 private:
  void disown();
  pid_t pid_ = 0;
};

// Returns the pids of the own children that were not reaped yet.
std::vector<pid_t> own_children();

// Reaps the children that have ended and have no owner. Returns false if it must be called again
// soon, without a SIGCHLD: an own child is being started, or has ended and was not reaped yet.
// waitid() reports that child until it is reaped, and hides the others.
bool reap_orphans(Instant now);

}  // namespace filetimer
