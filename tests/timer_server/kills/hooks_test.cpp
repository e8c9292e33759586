// Hooks with a real shell, and time as the test says it is.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/hooks.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "tests/support/files.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> plain_environment() {
  return {"PATH=/usr/bin:/bin", "FILETIMER_RANK=stale", "FILETIMER_JOB_ID=stale",
          "FILETIMER_INCIDENT=stale"};
}

// As in the server: a closed pipe is told by errno, and hooks get what was before.
const Inheritance& before_sigpipe_was_blocked() {
  static const Inheritance before = [] {
    Inheritance inheritance = Inheritance::of_this_process();
    sigset_t blocked{};
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGPIPE);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    return inheritance;
  }();
  return before;
}

struct HookStage {
  explicit HookStage(const std::string& command, HookLimits limits = {})
      : HookStage(HookCommands{command, {}}, limits) {}
  explicit HookStage(HookCommands commands, HookLimits limits = {})
      : hooks(loop.get(), std::move(commands), plain_environment(), before_sigpipe_was_blocked(),
              records, *log, limits) {}

  HookOccasion occasion(const std::string& id) const {
    Process process;
    process.pid = 4711;
    HookOccasion occasion;
    occasion.worker.process = std::make_shared<const Process>(std::move(process));
    occasion.worker.facts = facts;
    occasion.id = id;
    occasion.incident = "i1";
    occasion.scope = "forward pass";
    occasion.verdict = "dead";
    return occasion;
  }
  void add(const std::string& id) { hooks.add(occasion(id), now); }

  // Until nothing runs, at a time that stands still.
  void run_to_end(Instant at) {
    for (int i = 0; i < 1000 && !hooks.idle(); ++i) {
      hooks.advance(at);
      ::sd_event_run(loop.get(), hooks.idle() ? 0 : 20'000);
    }
    REQUIRE(hooks.idle());
  }
  testing::Records recorded() { return records_of_log(*log, folder); }
  testing::TempFolder folder;
  EventLoop loop = make_event_loop();
  const Instant now = Instant::now();
  FactsCell facts = std::make_shared<std::optional<WorkerFacts>>(WorkerFacts{});
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  Hooks hooks;
};

// A command with the folder in place of "@".
std::string in(const testing::TempFolder& folder, std::string command) {
  for (std::size_t at = 0; (at = command.find('@', at)) != command.npos;) {
    command.replace(at, 1, folder.path());
  }
  return command;
}

bool exists(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

// A command that needs the folder, which is made with the stage.
struct InFolder {
  testing::TempFolder folder;
  std::string command;
  explicit InFolder(const std::string& text) : command(in(folder, text)) {}
  std::string text_of(const std::string& name) const {
    return testing::read_file(folder.path(name));
  }
};

}  // namespace

TEST_CASE("A hook has its variables and an empty standard input, and its end is recorded") {
  const InFolder place(
      "(cat; echo $FILETIMER_ID $FILETIMER_PID \"$FILETIMER_SCOPE\" $FILETIMER_VERDICT "
      "$FILETIMER_RANK $FILETIMER_JOB_ID) > @/output; exit 3");
  HookStage stage(place.command);
  *stage.facts = WorkerFacts{{}, 5, {}, "job 7", {}};
  stage.add("k-1");
  stage.hooks.advance(stage.now);
  stage.run_to_end(stage.now + 20ms);
  const auto records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].text("event") == "hook");
  CHECK(records[0].integer("pid") == 4711);
  CHECK(records[0].text("id") == "k-1");
  CHECK(records[0].text("on") == "expiry");
  CHECK(records[0].text("incident") == "i1");
  CHECK(records[0].text("scope") == "forward pass");
  CHECK(records[0].text("result") == "exited");
  CHECK(records[0].integer("exit_status") == 3);
  CHECK(records[0].number("duration_ms") == 20);
  CHECK(place.text_of("output") == "k-1 4711 forward pass dead 5 job 7\n");
}

TEST_CASE("A warning has a hook of its own, without an incident") {
  const InFolder place(
      "echo $FILETIMER_ID $FILETIMER_VERDICT ${FILETIMER_INCIDENT-none} > @/output");
  HookStage stage(HookCommands{"false", place.command});
  HookOccasion warning = stage.occasion("k-w1");
  warning.incident.clear();
  warning.verdict = "warned";
  stage.hooks.add(warning, stage.now);
  stage.run_to_end(stage.now);
  CHECK(place.text_of("output") == "k-w1 warned none\n");
  const auto records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].text("on") == "warning");
  CHECK_FALSE(records[0].has("incident"));
  HookStage without(HookCommands{"false", {}});
  without.hooks.add(warning, without.now);
  CHECK(without.hooks.idle());
}

TEST_CASE("A hook does not get the rank and job of the server for those of the worker") {
  const InFolder place("echo ${FILETIMER_RANK-none} ${FILETIMER_JOB_ID-none} > @/output");
  HookStage stage(place.command);
  stage.add("k-1");
  stage.run_to_end(stage.now);
  CHECK(place.text_of("output") == "none none\n");
}

TEST_CASE("The record of a hook that a signal ended names the signal") {
  HookStage stage("kill -USR1 $$");
  stage.add("k-1");
  stage.run_to_end(stage.now);
  CHECK(stage.recorded().at(0).text("result") == "signalled");
  CHECK(stage.recorded().at(0).has("hook_pid"));
  CHECK(stage.recorded().at(0).integer("signal") == SIGUSR1);
  CHECK(stage.recorded().at(0).text("name") == "SIGUSR1");
}

TEST_CASE("A hook over its time gets SIGTERM and then SIGKILL, with all of its group") {
  const InFolder place(
      "trap '' TERM; sleep 1000 & echo $! > @/child; echo $$ > @/ready; wait; wait; sleep 1000");
  HookStage stage(place.command);
  stage.add("k-1");
  stage.hooks.advance(stage.now);
  for (int i = 0; i < 2000 && place.text_of("ready").empty(); ++i) {
    ::poll(nullptr, 0, 5);
  }
  const pid_t child = std::stoi(place.text_of("child"));
  const HookLimits limits;
  CHECK(stage.hooks.advance(stage.now + (limits.time - 1ms)) == stage.now + limits.time);
  CHECK(exists(child));
  const Instant term = stage.now + limits.time;
  CHECK(stage.hooks.advance(term) == term + limits.grace);
  CHECK_FALSE(stage.hooks.idle());  // the hook ignores SIGTERM
  CHECK(stage.hooks.advance(term + limits.grace) == term + limits.grace + limits.kill_wait);
  stage.run_to_end(term + limits.grace);
  for (int i = 0; i < 2000 && exists(child); ++i) {
    ::poll(nullptr, 0, 5);
  }
  CHECK_FALSE(exists(child));
  const auto records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].text("result") == "timed_out");
  CHECK(records[0].text("name") == "SIGKILL");
}

TEST_CASE("A limited number of hooks run at the same time, and the others wait") {
  const InFolder place("echo $FILETIMER_ID >> @/order; until [ -e @/go ]; do sleep 0.01; done");
  HookLimits limits;
  limits.running = 2;
  HookStage stage(place.command, limits);
  for (const char* id : {"a", "b", "c", "d"}) {
    stage.add(id);
  }
  CHECK(stage.hooks.advance(stage.now) == stage.now);  // one each time, the next one at once
  CHECK(own_children().size() == 1);
  stage.hooks.advance(stage.now);
  CHECK(own_children().size() == 2);
  stage.hooks.advance(stage.now);
  CHECK(own_children().size() == 2);
  place.folder.write("go", "");
  stage.run_to_end(stage.now);
  CHECK(place.text_of("order").size() == 8);
  CHECK(stage.recorded().size() == 4);
}

TEST_CASE("The number of waiting hooks has a limit, and a dropped hook is recorded") {
  HookLimits limits;
  limits.running = 1;
  limits.waiting = 2;
  HookStage stage("exit 0", limits);
  for (const char* id : {"a", "b", "c"}) {
    stage.add(id);
  }
  const auto records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].text("id") == "c");
  CHECK(records[0].text("result") == "dropped");
  CHECK(records[0].text("reason") == "too many hooks wait");
  stage.run_to_end(stage.now);
  CHECK(stage.recorded().size() == 3);
  stage.add("d");  // there is room again
  stage.run_to_end(stage.now);
  CHECK(stage.recorded().back().text("id") == "d");
  CHECK(stage.recorded().back().text("incident") == "i1");
  CHECK(stage.recorded().back().text("result") == "exited");
}

TEST_CASE("A hook starts when its record is synced, or when the log has had its time") {
  HookStage stage("exit 0");
  HookOccasion early = stage.occasion("k-1");
  early.record_number = 1;  // of a log that has none yet
  stage.hooks.add(std::move(early), stage.now);
  const Instant bound = stage.now + RecordLog::kStalled;
  CHECK(stage.hooks.advance(stage.now) == bound);
  stage.hooks.advance(bound);
  CHECK(own_children().size() == 1);
  stage.run_to_end(bound);
  CHECK(stage.recorded().at(0).text("result") == "exited");
}

TEST_CASE(
    "When the server stops, running hooks are killed, waiting ones dropped, and all recorded") {
  const InFolder place("echo $$ > @/ready; exec sleep 1000");
  HookLimits limits;
  limits.running = 1;
  HookStage stage(place.command, limits);
  stage.add("a");
  stage.add("b");
  stage.hooks.advance(stage.now);
  stage.hooks.stop();
  CHECK(stage.hooks.idle());
  const auto records = stage.recorded();
  REQUIRE(records.size() == 2);
  CHECK(records[0].text("id") == "a");
  CHECK(records[0].text("result") == "stopped");
  CHECK(records[0].text("name") == "SIGKILL");
  CHECK(records[1].text("id") == "b");
  CHECK(records[1].text("result") == "dropped");
  CHECK(records[1].text("reason") == "the server stopped");
  CHECK(own_children().empty());
}

TEST_CASE("Without a command there are no hooks") {
  HookStage stage("");
  stage.add("a");
  CHECK(stage.hooks.idle());
  CHECK(stage.recorded().empty());
}
