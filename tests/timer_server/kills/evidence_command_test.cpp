// The evidence commands of several incidents, with a real shell and time as the test says it is.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/evidence_command.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/timer_server/registry_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr Duration kTimeLimit = 10s;

// A command that runs until a file has the name of its incident.
struct CommandStage : RegistryParts {
  CommandStage()
      : command(loop.get(),
                fmt::format("while ! test -e {}/$FILETIMER_INCIDENT; do sleep 0.01; done; "
                            "echo $FILETIMER_ID",
                            folder.path()),
                kTimeLimit, {"PATH=/usr/bin:/bin"}, Inheritance::of_this_process(), records, *log) {
  }
  void start(int incident) {
    command.start(WorkerIdentity::of(worker), fmt::format("k-{}", incident), name_of(incident),
                  "load", now);
  }
  static std::string name_of(int incident) { return fmt::format("k-i{}", incident); }
  [[nodiscard]] bool is_running(int incident) const {
    return command.is_running(name_of(incident));
  }
  void let_end(int incident) {
    testing::write_file(folder.path(name_of(incident)), "");
    const Instant until = Instant::now() + 10s;
    for (command.advance(now); is_running(incident); command.advance(now)) {
      REQUIRE(Instant::now() < until);
      ::sd_event_run(loop.get(), 20'000);
    }
  }

  const Instant now = Instant::now();
  Worker& worker = add_this_process();
  EvidenceCommand command;
};

}  // namespace

TEST_CASE("The evidence commands of two incidents run side by side, each for its incident") {
  CommandStage stage;
  stage.start(1);
  stage.start(2);
  CHECK(stage.is_running(1));
  CHECK(stage.is_running(2));
  CHECK_FALSE(stage.is_running(3));
  CHECK(stage.command.advance(stage.now) == stage.now + kTimeLimit);
  stage.let_end(2);
  CHECK(stage.is_running(1));
  stage.let_end(1);
  CHECK(stage.command.advance(stage.now).is_never());
  const testing::Records records = stage.records_of("evidence_command");
  REQUIRE(records.size() == 2);
  CHECK(records[0].text("incident") == "k-i2");
  CHECK(records[0].text("output") == "k-2\n");
  CHECK(records[1].text("incident") == "k-i1");
  CHECK(records[1].text("output") == "k-1\n");
}

TEST_CASE("Of too many evidence commands the one of the earliest incident is killed") {
  CommandStage stage;
  constexpr int kMost = static_cast<int>(EvidenceCommand::kMaxRunning);
  for (int incident = 1; incident <= kMost; ++incident) {
    stage.start(incident);
  }
  CHECK(stage.is_running(1));
  stage.start(kMost + 1);
  CHECK_FALSE(stage.is_running(1));
  CHECK(stage.is_running(2));
  CHECK(stage.is_running(kMost + 1));
  stage.command.stop();
  const testing::Records records = stage.records_of("evidence_command");
  REQUIRE(records.size() == EvidenceCommand::kMaxRunning + 1);
  CHECK(records[0].text("incident") == "k-i1");
  CHECK(records[0].text("result") == "stopped");
  CHECK(records[0].text("reason") == "too many evidence commands were running");
  CHECK(records[1].text("reason") == "the server stopped");
}

TEST_CASE("At its time limit an evidence command is killed, and the others run on") {
  CommandStage stage;
  stage.start(1);
  stage.command.advance(stage.now + kTimeLimit);
  CHECK_FALSE(stage.is_running(1));
  stage.start(2);
  stage.command.advance(stage.now + (kTimeLimit - 1ms));
  CHECK(stage.is_running(2));
  CHECK(stage.records_of("evidence_command").at(0).text("result") == "timed_out");
  stage.command.stop();
}
