// The ends of own children and of orphans, and their variables, with real children.
// SPDX-License-Identifier: MIT
#include "timer_server/system/own_children.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include "common/sanitizers.hpp"
#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"

using namespace filetimer;

TEST_CASE("The status of an own child is left to its owner") {
  OwnChild child = OwnChild::start([] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::_exit(7);
    }
    return pid;
  });
  OwnChild& same = child;
  child = std::move(same);
  REQUIRE(child);
  REQUIRE(wait_for_zombie(child.pid()));
  CHECK_FALSE(reap_orphans(Instant::now()));  // the own child hides the other
  CHECK(own_children() == std::vector{child.pid()});
  const auto end = child.reap();
  REQUIRE(end);
  CHECK(end->exit_status == 7);
  CHECK(end->signal == 0);
  CHECK_FALSE(child);
  CHECK(own_children().empty());
  CHECK(reap_orphans(Instant::now()));
}

TEST_CASE("An orphan is reaped while a child is being started, if the start has taken a second") {
  const pid_t orphan = fork_waiting([] {});
  ::kill(orphan, SIGKILL);
  REQUIRE(wait_for_zombie(orphan));
  const OwnChild none = OwnChild::start([&] {
    const Instant begun = Instant::now();
    CHECK_FALSE(reap_orphans(begun));
    CHECK(is_our_child(orphan));
    CHECK(reap_orphans(begun + std::chrono::seconds{1}));
    CHECK_FALSE(is_our_child(orphan));
    return -1;  // the fork has failed
  });
  CHECK_FALSE(none);
  CHECK(own_children().empty());
}

TEST_CASE("A child that cannot be executed exits with 127") {
  ChildStart start;
  start.words = {"/no/such/program"};
  auto child = start_child(start);
  REQUIRE(child);
  REQUIRE(wait_for_zombie(child->pid()));
  CHECK(child->reap().value_or(ChildEnd{}).exit_status == 127);
}

TEST_CASE("The start of a child that cannot be executed fails if it waits") {
  FILETIMER_SKIP_IF(kIsThreadSanitized, "the sanitizer makes a fork() of vfork()");
  ChildStart start;
  start.words = {"/no/such/program"};
  start.waits = true;
  const auto failed = start_child(start);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().errno_value == ENOENT);
  CHECK(own_children().empty());
}

TEST_CASE("A variable is set once, replaced and unset") {
  std::vector<std::string> environment{"AB=1", "A=1", "A=2"};
  set_variable(environment, "A", "3=4");
  CHECK(environment == std::vector<std::string>{"AB=1", "A=3=4"});
  set_variable(environment, "A", std::nullopt);
  CHECK(environment == std::vector<std::string>{"AB=1"});
}
