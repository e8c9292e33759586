// SPDX-License-Identifier: MIT
#include "timer_server/kills/commands.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/timer_server/core_stage.hpp"
#include "timer_server/kills/kills.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

TEST_CASE("4,096 hooks may wait, and a further one is dropped, with a record") {
  Settings settings;
  settings.on_expiry = "true";
  CoreStage stage(settings);
  Commands commands(stage.core);
  const WorkerIdentity worker{
      std::make_shared<const Process>(std::move(*open_process(::getpid())))};
  const auto add = [&](const std::string& id) {
    commands.add_hook(
        {.worker = worker, .id = id, .incident = "i1", .scope = "step", .verdict = "dead"},
        Instant::now());
  };
  const auto log_after_hook = [&](const std::string& id) {
    add(id);
    CHECK(stage.core.log->drain(10s));
    return testing::read_file(stage.core.log->path());
  };
  for (std::size_t i = 1; i < Commands::kMaxHooksWaiting; ++i) {
    add("waits");
  }
  CHECK_FALSE(testing::contains(log_after_hook("the last one"), "\"hook\""));
  const std::string log = log_after_hook("one more");
  CHECK(testing::contains(log, R"("id":"one more")"));
  CHECK(testing::contains(log, "too many hooks wait"));
}

TEST_CASE("a kill has the signal of the first expiry that has one, and the shortest grace") {
  const auto expiry = [](int signal, std::uint32_t grace_ms) {
    Expiry made;
    made.scope.signal = signal;
    made.scope.grace_ms = grace_ms;
    return made;
  };
  Expiry released = expiry(SIGUSR1, 100);
  released.released_at = Instant::now();
  const auto means_of = [](const std::vector<Expiry>& expiries) {
    return KillOrder::means_of(expiries);
  };
  const auto shortest =
      means_of({expiry(SIGUSR1, 9'000), expiry(SIGTERM, 100), expiry(SIGTERM, 5'000)});
  REQUIRE(shortest);
  CHECK(shortest->signal == SIGUSR1);
  CHECK(shortest->grace == Duration{100ms});
  CHECK(means_of({expiry(SIGTERM, kNoSigkill), expiry(SIGTERM, 100)}).value().grace ==
        Duration{100ms});
  const auto last = means_of({released, expiry(0, 100), expiry(SIGTERM, kNoSigkill)});
  REQUIRE(last);
  CHECK(last->signal == SIGTERM);
  CHECK_FALSE(last->ends_in_sigkill());
  CHECK_FALSE(means_of({released}));
}

TEST_CASE("an incident whose verdict could not be recorded does not keep the server awake") {
  CoreStage stage;
  Incidents incidents(stage.core);
  const ClockReading now = ClockReading::now();
  (void)incidents.add("x-1", now);
  incidents.read_workers(false);
  CHECK(incidents.advance(now.mono) == now.mono + kFactsLimit);
  CHECK(incidents.advance(now.mono + kFactsLimit).is_never());
}
