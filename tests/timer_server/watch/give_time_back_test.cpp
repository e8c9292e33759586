// Which scopes get missed time back.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/give_time_back.hpp"

#include <doctest/doctest.h>

#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct GivingStage : WorkerParts {
  std::size_t give(const MissedTime::Missed& missed, Instant until) {
    return give_time_back(missed, until, {workers, policy, given, records, *log});
  }
  Instant next_deadline(Worker& worker) {
    WorkerPage::Found found;
    WorkerPage::Activity activity;
    return worker.pipe->scan(policy.scan_of(worker, {}), found, activity);
  }
};

}  // namespace

TEST_CASE("Missed time is given to the scopes that were open in it, and recorded once") {
  GivingStage stage;
  Worker& open = stage.add_worker(4711);
  stage.acquire(open, "forward", terms_between({1'000}, {9'000}));
  TestPage content;
  content.open(0, {.timeout = 8'000, .word = 9'000});
  stage.add_page(open, content);
  Worker& later = stage.add_worker(4712);
  stage.acquire(later, "backward", terms_between({6'000}, {9'000}));
  CHECK(stage.give({.late = 2us}, {5'000}) == 2);
  CHECK(stage.next_deadline(open) == Instant{11'000});
  CHECK(stage.next_deadline(later) == Instant{9'000});
  const testing::Records deferred = stage.records_of("deferred");
  REQUIRE(deferred.size() == 1);
  CHECK(deferred[0].integer("scopes") == 2);
  CHECK(deferred[0].number("given_s") == doctest::Approx(2e-6));
  CHECK(deferred[0].text("reason") == "the server woke 2 us later than planned");
}

TEST_CASE("The record of missed time names its longer part") {
  GivingStage stage;
  stage.acquire(stage.add_worker(4711), "forward", terms_between({1'000}, {9'000'000'000}));
  CHECK(stage.give({.late = 1s, .suspended = 3s}, {5'000'000'000}) == 1);
  const testing::Records deferred = stage.records_of("deferred");
  REQUIRE(deferred.size() == 1);
  CHECK(deferred[0].text("reason") == "the machine was suspended for 3 s");
  CHECK(deferred[0].number("given_s") == doctest::Approx(4));
}

TEST_CASE("Time that no open scope has missed is not recorded") {
  GivingStage stage;
  Worker& worker = stage.add_worker(4711);
  stage.acquire(worker, "forever", Instant::never().ns);
  CHECK(stage.give({.late = 2s}, {5'000'000'000}) == 0);
  CHECK(stage.records_of("deferred").empty());
}
