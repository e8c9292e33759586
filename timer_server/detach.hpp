// --detach: the caller gets its prompt back when the server is ready, or its exit status when it
// could not start.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

class Detached {
 public:
  // Forks. In the parent: waits for the child to report, prints what it reports, and gives the
  // status to exit with. In the child, which is in a session of its own by then: gives nothing.
  // Call before any thread is started.
  static Result<Detached> fork(std::optional<int>& parent_exit_status);

  // Tells the waiting parent the ready line, and lets go of the terminal.
  void report_ready(const std::string& line);

 private:
  UniqueFd report_;
};

}  // namespace filetimer
