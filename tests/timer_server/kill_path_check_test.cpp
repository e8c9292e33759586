// SPDX-License-Identifier: MIT
#include "timer_server/kill_path_check.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

using namespace filetimer;

TEST_CASE("The check reports that processes can be killed") {
  const KillPath path = check_kill_path();
  CHECK(path.signal == true);
  CHECK(path.trouble.empty());
}

TEST_CASE("An ability that could not be tried is unknown and not denied") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const KillPath path = check_kill_path();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(path.signal.has_value());
  CHECK(path.trouble.starts_with("not tried: pidfd_open: "));
}
