// Checks what the system lets the server do to its workers, on the server itself when it starts, so
// that a missing permission is reported then and not at the first hang.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace filetimer {

struct KillPath {
  // Whether a signal can be sent through a pidfd; nothing: not tried.
  std::optional<bool> signal;
  bool ptrace = false;         // whether processes of the server's user can be traced
  bool kernel_stacks = false;  // whether /proc/PID/stack can be read
  std::string trouble;         // why `signal` is not true, on one line
};

KillPath check_kill_path();

}  // namespace filetimer
