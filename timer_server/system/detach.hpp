// --detach: the command returns when the server is ready, or with its exit status if it cannot
// start.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// The forked server's connection to the command that waits for it.
class Detached {
 public:
  // Forks. In the parent, waits for the child's report, prints it, and sets `parent_exit_status`,
  // with which the parent must exit. In the child, begins a new session and leaves
  // `parent_exit_status` empty. Must be called before any thread is started.
  static Result<Detached> fork(std::optional<int>& parent_exit_status);

  // Reports the ready line to the parent, and replaces the three standard descriptors by /dev/null.
  void report_ready(const std::string& line);

 private:
  UniqueFd report_;
};

}  // namespace filetimer
