// SPDX-License-Identifier: MIT
#include "timer_server/kill_path_check.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "timer_server/own_children.hpp"

using namespace filetimer;

TEST_CASE("Where processes can be killed the check says so, and leaves no process behind") {
  const KillPath path = check_kill_path();
  CHECK(path.signal);
  CHECK(path.trouble.empty());
  CHECK(own_children().empty());
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child, not even a dead one
}
