// SPDX-License-Identifier: MIT
#include "timer_server/kill_path_check.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "timer_server/own_children.hpp"

using namespace filetimer;

TEST_CASE("Where processes can be killed the check says so, and leaves no process behind") {
  const KillPath path = check_kill_path();
  CHECK(path.signal == true);
  CHECK(path.trouble.empty());
  CHECK(own_children().empty());
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child, not even a dead one
}

TEST_CASE("What could not be tried is not called impossible") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const KillPath path = check_kill_path();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(path.signal.has_value());
  CHECK(path.trouble.starts_with("not tried: cannot make a pipe: "));
}
