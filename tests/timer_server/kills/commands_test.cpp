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

namespace {

struct HookStage : CoreStage {
  explicit HookStage(const std::string& log = {})
      : CoreStage([&] {
          Settings with;
          with.on_expiry = with.on_warning = "true";
          with.log = log;
          return with;
        }()) {}
  // Without an incident it is the hook of a warning.
  void add(const std::string& id, const std::string& incident = "i1") {
    commands.add_hook(
        {.worker = worker, .id = id, .incident = incident, .scope = "step", .verdict = "dead"},
        Instant::now());
  }
  const WorkerIdentity worker{
      std::make_shared<const Process>(std::move(*open_process(::getpid())))};
  Commands commands{core};
};

}  // namespace

TEST_CASE("4,096 hooks may wait, a further one is dropped, and those of kills start first") {
  HookStage stage;
  const auto log_after = [&](const auto& step) {
    step();
    CHECK(stage.core.log->drain(10s));
    return testing::read_file(stage.core.log->path());
  };
  stage.add("warned", "");
  for (std::size_t i = 1; i < Commands::kMaxHooksWaiting; ++i) {
    stage.add("waits");
  }
  CHECK_FALSE(testing::contains(log_after([&] { stage.add("the last one"); }), "\"hook\""));
  const std::string log = log_after([&] { stage.add("one more"); });
  CHECK(testing::contains(log, R"("id":"one more")"));
  CHECK(testing::contains(log, "too many hooks wait"));
  (void)stage.commands.start_hooks(Instant::now());
  CHECK(testing::contains(log_after([&] { stage.commands.stop(); }),
                          R"("id":"warned","on":"warning","scope":"step","result":"dropped")"));
}

TEST_CASE("the records of hooks leave the rest of the backlog to verdicts and outcomes") {
  HookStage stage("/dev/full");
  RecordLog& log = *stage.core.log;
  for (const std::size_t size : {std::size_t{1} << 20, std::size_t{64}}) {
    for (const std::uint64_t lost = log.backlog().lost; log.backlog().lost == lost;) {
      log.append_detail(std::string(size, 'x'));
    }
  }
  const std::uint64_t lost = log.backlog().lost;
  stage.add("x-1");
  stage.commands.stop();  // drops it, with a record
  CHECK(log.backlog().lost == lost + 1);
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
    KillState kill;
    kill.expiries = expiries;
    return kill.means();
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
