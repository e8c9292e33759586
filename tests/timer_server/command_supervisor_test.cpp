// The supervisor with real children of the test and injected time.
// SPDX-License-Identifier: MIT
#include "timer_server/command_supervisor.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/bound.hpp"
#include "tests/support/children.hpp"
#include "timer_server/system/own_children.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct SupervisorStage {
  ~SupervisorStage() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }  // which Command::start() sets
  void start(const std::vector<std::string>& words) {
    auto command = Command::start(words, Inheritance::of_this_process(), "/dir", "/dir/requests");
    REQUIRE(command);
    children.supervise(std::move(*command));
  }
  // Waits until the loop has noticed the end of COMMAND.
  void wait_for_end() const {
    constexpr std::chrono::microseconds kMost = testing::kBound;
    REQUIRE(::sd_event_run(loop.get(), static_cast<std::uint64_t>(kMost.count())) > 0);
  }
  EventLoop loop = make_event_loop();
  CommandSupervisor children{loop.get()};
  Instant now{1'000'000'000};
};

}  // namespace

TEST_CASE("Without COMMAND orphans are reaped after each SIGCHLD, and no other work is planned") {
  SupervisorStage stage;
  CHECK_FALSE(stage.children.command());
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK(stage.children.next().is_never());
  CHECK(stage.children.is_done_killing());
  const pid_t orphan = fork_waiting([] {});
  ::kill(orphan, SIGKILL);
  REQUIRE(wait_for_zombie(orphan));
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK(is_our_child(orphan));
  stage.children.note_child_ended();
  CHECK(stage.children.next() == Instant{});
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK_FALSE(is_our_child(orphan));
  CHECK(stage.children.next().is_never());
}

TEST_CASE("The end of COMMAND is reported once, with its exit status") {
  SupervisorStage stage;
  stage.start({"/bin/sh", "-c", "exit 7"});
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK(stage.children.next() > stage.now);
  stage.wait_for_end();
  CHECK(stage.children.next() == Instant{});
  CHECK(stage.children.advance(stage.now));
  CHECK(stage.children.exit_status() == 7);
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK(stage.children.is_done_killing());
}

TEST_CASE("Orphans that an unreaped own child hides are reaped a little later") {
  SupervisorStage stage;
  OwnChild own = OwnChild::start([] { return fork_waiting([] {}); });
  ::kill(own.pid(), SIGKILL);
  REQUIRE(wait_for_zombie(own.pid()));
  CHECK_FALSE(stage.children.advance(stage.now));
  const Instant again = stage.children.next();
  CHECK(again > stage.now);
  CHECK_FALSE(again.is_never());
  REQUIRE(own.reap());
  CHECK_FALSE(stage.children.advance(again));
  CHECK(stage.children.next().is_never());
}

TEST_CASE(
    "COMMAND is killed with all orphans, and the other own children of the server are spared") {
  SupervisorStage stage;
  stage.start({"/bin/sleep", "1000"});
  const pid_t orphan = fork_waiting([] {});
  OwnChild hook = OwnChild::start([] { return fork_waiting([] {}); });
  stage.children.kill();
  CHECK_FALSE(stage.children.is_done_killing());
  CHECK_FALSE(stage.children.advance(stage.now));
  CHECK_FALSE(stage.children.is_done_killing());
  CHECK(stage.children.next() > stage.now);  // to look for processes that were started since
  CHECK_FALSE(stage.children.next().is_never());
  stage.wait_for_end();
  REQUIRE(wait_for_zombie(orphan));
  stage.children.note_child_ended();
  CHECK(stage.children.advance(stage.now));
  CHECK(stage.children.exit_status() == 128 + SIGKILL);
  CHECK_FALSE(is_our_child(orphan));
  CHECK(stage.children.is_done_killing());
  CHECK(stage.children.next().is_never());
  CHECK_FALSE(hook.reap());  // still running
  ::kill(hook.pid(), SIGKILL);
  CHECK(hook.wait().signal == SIGKILL);
}
