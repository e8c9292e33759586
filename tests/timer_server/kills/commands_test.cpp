// SPDX-License-Identifier: MIT
#include "timer_server/kills/commands.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.hpp"
#include "timer_server/kills/kills.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

TEST_CASE("4,096 hooks may wait, and a further one is dropped, with a record") {
  const testing::TempFolder folder;
  Settings settings;
  settings.dir = folder.path();
  settings.on_expiry = "true";
  const auto directory = RuntimeDirectory::open(settings, {}).value();
  Core core{settings, *directory};
  Commands commands(core);
  const WorkerIdentity worker{
      std::make_shared<const Process>(std::move(*open_process(::getpid())))};
  const auto log_after_hook = [&](const std::string& id) {
    commands.add_hook(
        {.worker = worker, .id = id, .incident = "i1", .scope = "step", .verdict = "dead"},
        Instant::now());
    CHECK(core.log->drain(10s));
    return testing::read_file(core.log->path());
  };
  for (std::size_t i = 1; i < Commands::kMaxHooksWaiting; ++i) {
    commands.add_hook(
        {.worker = worker, .id = "waits", .incident = "i1", .scope = "step", .verdict = "dead"},
        Instant::now());
  }
  CHECK_FALSE(testing::contains(log_after_hook("the last one"), "\"hook\""));
  const std::string log = log_after_hook("one more");
  CHECK(testing::contains(log, R"("id":"one more")"));
  CHECK(testing::contains(log, "too many hooks wait"));
}

TEST_CASE("a kill has the signal of the first expiry that has one, and the shortest grace") {
  struct Row {
    int signal = 0;
    std::uint32_t grace_ms = 0;
    bool is_released = false;
  };
  const auto means_of = [](const std::vector<Row>& rows) {
    std::vector<Expiry> expiries;
    for (const Row& row : rows) {
      Expiry expiry;
      expiry.scope.signal = row.signal;
      expiry.scope.grace_ms = row.grace_ms;
      if (row.is_released) {
        expiry.released_at = Instant::now();
      }
      expiries.push_back(std::move(expiry));
    }
    return KillOrder::means_of(expiries);
  };
  const auto shortest = means_of({{SIGUSR1, 9'000}, {SIGTERM, 100}, {SIGTERM, 5'000}});
  REQUIRE(shortest);
  CHECK(shortest->signal == SIGUSR1);
  CHECK(shortest->grace == Duration{100ms});
  CHECK(means_of({{SIGTERM, kNoSigkill}, {SIGTERM, 100}}).value().grace == Duration{100ms});
  const auto last = means_of({{SIGUSR1, 100, true}, {0, 100}, {SIGTERM, kNoSigkill}});
  REQUIRE(last);
  CHECK(last->signal == SIGTERM);
  CHECK_FALSE(last->ends_in_sigkill());
  CHECK_FALSE(means_of({{SIGTERM, 100, true}}));
}
