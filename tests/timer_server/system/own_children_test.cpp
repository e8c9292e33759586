// Reaping of own children and of orphans, with real children of the test.
// SPDX-License-Identifier: MIT
#include "timer_server/system/own_children.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/children.hpp"

using namespace filetimer;

namespace {

pid_t fork_exiting(int status) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(status);
  }
  return pid;
}

}  // namespace

TEST_CASE("A child without an owner is reaped when it has ended, and not before") {
  const pid_t ended = fork_exiting(0);
  REQUIRE(wait_for_zombie(ended));
  Child alive;
  CHECK(reap_orphans(Instant::now()));
  CHECK_FALSE(is_our_child(ended));
  CHECK(is_our_child(alive.pid()));
}

TEST_CASE("The status of an own child is left to its owner") {
  OwnChild child = OwnChild::start([] { return fork_exiting(7); });
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

TEST_CASE("A living child has no end, and the end of a killed child names the signal") {
  OwnChild child = OwnChild::start([] { return fork_waiting([] {}); });
  CHECK_FALSE(child.reap());
  ::kill(child.pid(), SIGKILL);
  const ChildEnd end = child.wait();
  CHECK_FALSE(end.exit_status);
  CHECK(end.signal == SIGKILL);
}

TEST_CASE("A child whose owner is gone is reaped as an orphan") {
  pid_t pid = 0;
  {
    const OwnChild child = OwnChild::start([] { return fork_waiting([] {}); });
    pid = child.pid();
  }
  CHECK(own_children().empty());
  ::kill(pid, SIGKILL);
  REQUIRE(wait_for_zombie(pid));
  CHECK(reap_orphans(Instant::now()));
  CHECK_FALSE(is_our_child(pid));
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
    return -1;
  });
  CHECK_FALSE(none);
}

TEST_CASE("A failed fork leaves no child") {
  const OwnChild none = OwnChild::start([] { return -1; });
  CHECK_FALSE(none);
  CHECK(own_children().empty());
}
