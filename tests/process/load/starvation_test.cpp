// Healthy workers on an overloaded machine are not killed. Runs for FILETIMER_STARVE_SECONDS,
// without other tests.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using namespace std::chrono_literals;

namespace {

constexpr int kWorkers = 200;
// A little less than in healthy_workers.cpp, because requests on the pipe have the wall clock.
constexpr std::int64_t kTimeoutNs = 998'000'000;
constexpr unsigned kBusyLoopsPerCpu = 8;

std::chrono::seconds duration() {
  const char* const seconds = std::getenv("FILETIMER_STARVE_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 10 : std::atoi(seconds));
}

}  // namespace

TEST_CASE("none of two hundred healthy workers is killed on a machine eight times oversubscribed") {
  Server server;
  Worker workers(
      {.program = {program_path("healthy_workers"), server.dir(), std::to_string(kWorkers)}});
  std::vector<std::unique_ptr<Child>> load;
  for (unsigned i = 0; i < kBusyLoopsPerCpu * std::max(1U, std::thread::hardware_concurrency());
       ++i) {
    load.push_back(
        std::make_unique<Child>(Launch{.argv = {"/bin/sh", "-c", "while :; do :; done"}}));
  }
  const Instant until = Instant::now() + duration();
  REQUIRE(wait_until([&] { return Instant::now() >= until; }, duration() + kBound));
  workers.let_go();
  std::istringstream said(workers.line());
  std::string word;
  long well = 0;
  long renewed = 0;
  long late = 0;
  long starved = 0;
  said >> word >> well >> word >> renewed >> word >> late >> word >> starved;
  load.clear();
  CHECK(workers.status() == exited(0));
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  // A worker that did not run for its whole timeout may be killed, but not earlier.
  long killed = 0;
  std::int64_t last_renewal = 0;
  for (pid_t pid = 0; said >> pid >> last_renewal; ++killed) {
    const auto expired = std::ranges::find_if(
        records, [&](const Record& record) { return record.is("expired", pid); });
    REQUIRE(expired != records.end());
    CHECK(expired->integer("mono_ns") - last_renewal >= kTimeoutNs);
  }
  CHECK(well == kWorkers - killed);
  // A worker that resumes between its verdict and the signal is spared.
  const auto spared = std::ranges::count_if(records, [](const Record& record) {
    return record.is("killed") && record.text("verdict") == "spared";
  });
  CHECK(count(records, "expired") == static_cast<std::size_t>(killed + spared));
  CHECK(late <= starved);
  FILETIMER_SKIP_IF(killed > 0 || starved > 0,
                    "this machine let workers wait past their deadlines");
  // If the server starved, the pipe may have had no room for a worker's release before its end.
  CHECK(count(records, "left_open") == 0);
  // All workers ran all the time: half of the renewals of an idle machine.
  CHECK(renewed >= kWorkers * duration().count());
  MESSAGE(fmt::format("{} renewals, {} deferred", renewed, count(records, "deferred")));
}
