// SPDX-License-Identifier: MIT
#include "timer_server/watch/expected_workers.hpp"

#include <doctest/doctest.h>

#include "tests/timer_server/process_of.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

WorkerIdentity arrived(const Child& child, std::optional<int> rank) {
  WorkerFacts facts;
  facts.rank = rank;
  return {std::make_shared<const Process>(process_of(child)),
          std::make_shared<std::optional<WorkerFacts>>(facts)};
}

}  // namespace

TEST_CASE("Expected workers that have all shown up are reported once") {
  ExpectedWorkers expected(2, 1min, {});
  const Child one;
  const Child other;
  expected.add(arrived(one, 1));
  CHECK_FALSE(expected.advance({}));
  expected.add(arrived(other, 0));
  const auto outcome = expected.advance(Instant{} + 1s);
  REQUIRE(outcome);
  CHECK(outcome->failure.empty());
  CHECK(outcome->round.joined.size() == 2);
  CHECK(expected.next().is_never());
  CHECK_FALSE(expected.advance(Instant::never()));
}

TEST_CASE("When the time is up the missing ranks are named") {
  ExpectedWorkers expected(3, 1min, {});
  CHECK(expected.next() == Instant{} + 1min);
  const Child worker;
  expected.add(arrived(worker, 1));
  const auto outcome = expected.advance(Instant{} + 1min);
  REQUIRE(outcome);
  CHECK(outcome->failure ==
        "after 60 s 1 of 3 workers had shown up (--expect-workers); missing: rank 0, 2");
}

TEST_CASE("A worker that has ended does not count, and ranks are named only if all are known") {
  ExpectedWorkers expected(2, 1min, {});
  Child crashed;
  expected.add(arrived(crashed, 0));
  crashed.end();
  const Child worker;
  expected.add(arrived(worker, std::nullopt));
  CHECK_FALSE(expected.advance({}));
  const auto outcome = expected.advance(Instant{} + 1min);
  REQUIRE(outcome);
  CHECK(outcome->round.joined.size() == 1);
  CHECK(outcome->round.missing.empty());
}

TEST_CASE("Without --expect-workers the server expects no worker") {
  ExpectedWorkers expected(0, std::nullopt, {});
  const Child worker;
  expected.add(arrived(worker, 0));
  CHECK_FALSE(expected.advance(Instant::never()));
}
