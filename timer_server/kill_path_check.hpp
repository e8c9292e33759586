// A dry run of the kill path on a child of our own: what the server could not do here when it comes
// to it is told when it starts, not at the first hang. It takes less than a millisecond where all
// is well.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/clock.hpp"

namespace filetimer {

struct KillPath {
  // A pidfd was opened and SIGKILL sent through it ended the process; nothing: not tried.
  std::optional<bool> signal;
  bool ptrace = false;         // a process of our user can be traced
  bool kernel_stacks = false;  // /proc/PID/stack can be read
  std::string trouble;         // why `signal` is not true, on one line
};

// How long the child may take to die. A machine that is busy takes milliseconds.
inline constexpr Duration kDeathLimit = std::chrono::seconds{1};

KillPath check_kill_path();

}  // namespace filetimer
