// --slow-factor over pages in files, whose times a test computes.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/slow_ranks.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/simulated_job.hpp"
#include "tests/timer_server/registry_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;
using filetimer::testing::SimulatedJob;

namespace {

struct SlowStage : WorkerParts {
  explicit SlowStage(std::size_t ranks = 8, std::optional<double> factor = 1.2)
      : slow(factor, workers, records, *log) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Worker& worker = add_worker(kNoProcess + static_cast<pid_t>(rank));
      WorkerFacts facts;
      facts.rank = static_cast<int>(rank);
      facts.job_id = "8812";
      *worker.facts = facts;
      TestPage content;
      pages.push_back(&add_page(worker, content, "page" + std::to_string(rank)));
    }
  }

  // Makes steps of the job.
  void run(std::vector<double> slowness, int steps = 16) {
    const SimulatedJob job{.ranks = pages.size(),
                           .steps = steps,
                           .slowness = std::move(slowness),
                           .seed = ++seed,
                           .begin = begin};
    const std::vector<EndedScopesByName> ended = job.run();
    for (std::size_t rank = 0; rank < ended.size(); ++rank) {
      testing::leave_scopes(pages[rank]->layout(), ended[rank]);
    }
    begin = begin + 60s;
  }
  // Makes a whole look as soon as one is due.
  void look() {
    now = now + SlowRanks::kLeastPeriod;
    slow.begin(now);
    while (!slow.advance(now, 0ns).is_never()) {
    }
  }
  void run_and_look(int times, const std::vector<double>& slowness) {
    for (int i = 0; i < times; ++i) {
      run(slowness);
      look();
    }
  }
  std::size_t recorded(std::string_view scope) {
    testing::Records all = records_of("slow");
    std::erase_if(all,
                  [&](const testing::Record& record) { return record.text("scope") != scope; });
    return all.size();
  }

  std::vector<MappedPage*> pages;
  SlowRanks slow;
  std::uint64_t seed = 0;
  Instant begin{std::int64_t{1'000'000'000'000}};
  Instant now{1'000};
};

const std::vector<double> kThirdSlow{1, 1, 1, 1.3};

}  // namespace

TEST_CASE("A rank that is slow in three looks is recorded once, and so is the wait for it") {
  SlowStage stage;
  stage.run_and_look(SlowRanks::kLooks - 1, kThirdSlow);
  CHECK(stage.records_of("slow").empty());
  CHECK(stage.slow.count() == 0);
  stage.run_and_look(10, kThirdSlow);
  const testing::Records slow = stage.records_of("slow");
  REQUIRE(slow.size() == 2);
  CHECK(slow[0].text("scope") == "allreduce");
  CHECK(slow[0].text("kind") == "waits_least");
  CHECK(slow[1].text("scope") == "forward");
  CHECK(slow[1].text("kind") == "slower");
  CHECK(slow[1].integer("pid") == kNoProcess + 3);
  CHECK(slow[1].integer("rank") == 3);
  CHECK(slow[1].text("job_id") == "8812");
  CHECK(slow[1].number("factor") == doctest::Approx(1.3).epsilon(0.05));
  CHECK(slow[1].number("median_s") == doctest::Approx(0.13).epsilon(0.05));
  CHECK(slow[1].number("others_median_s") == doctest::Approx(0.1).epsilon(0.05));
  CHECK(slow[1].integer("ranks") == 8);
  CHECK(stage.slow.count() == 2);
  CHECK(stage.slow.recorded() == 2);
}

TEST_CASE("A rank that was not slow in one of three looks is not recorded") {
  SlowStage stage;
  for (int i = 0; i < 4; ++i) {
    stage.run_and_look(SlowRanks::kLooks - 1, kThirdSlow);
    stage.run_and_look(1, {});
  }
  CHECK(stage.records_of("slow").empty());
}

TEST_CASE("An episode ends after three looks, and the next one has a record of its own") {
  SlowStage stage;
  stage.run_and_look(SlowRanks::kLooks, kThirdSlow);
  CHECK(stage.recorded("forward") == 1);
  stage.run_and_look(SlowRanks::kLooks - 1, {});
  CHECK(stage.slow.count() == 2);
  stage.run_and_look(SlowRanks::kLooks, kThirdSlow);  // the episode continues
  CHECK(stage.recorded("forward") == 1);
  stage.run_and_look(SlowRanks::kLooks, {});
  CHECK(stage.slow.count() == 0);
  stage.run_and_look(SlowRanks::kLooks, kThirdSlow);
  CHECK(stage.recorded("forward") == 2);
  CHECK(stage.slow.recorded() == 4);
}

TEST_CASE("Looks in which no scope has ended since the last one do not count") {
  SlowStage stage;
  stage.run(kThirdSlow);
  for (int i = 0; i < 10; ++i) {
    stage.look();
  }
  CHECK(stage.records_of("slow").empty());
  stage.run(kThirdSlow, 1);  // of 16 scopes one is new
  stage.look();
  CHECK(stage.records_of("slow").empty());
  stage.run(kThirdSlow, 1);
  stage.look();
  CHECK(stage.recorded("forward") == 1);
}

TEST_CASE("Looks are two seconds apart at least, however often sweeps come") {
  SlowStage stage;
  stage.run(kThirdSlow);
  for (int i = 0; i < 100; ++i) {
    stage.run(kThirdSlow, 1);
    stage.slow.begin(stage.now + i * (SlowRanks::kLeastPeriod / 50));
    while (!stage.slow.advance(stage.now).is_never()) {
    }
  }
  CHECK(stage.records_of("slow").empty());  // at 0 s and at 2 s
  stage.slow.begin(stage.now + 2 * SlowRanks::kLeastPeriod);
  while (!stage.slow.advance(stage.now).is_never()) {
  }
  CHECK(stage.recorded("forward") == 1);
}

TEST_CASE("No rank is named without a factor, with two ranks, or below the factor") {
  SUBCASE("no factor") {
    SlowStage stage(8, std::nullopt);
    stage.run_and_look(5, kThirdSlow);
    CHECK(stage.records_of("slow").empty());
    CHECK(stage.slow.advance(stage.now).is_never());
  }
  SUBCASE("two ranks") {
    SlowStage stage(2);
    stage.run_and_look(5, {1, 3});
    CHECK(stage.records_of("slow").empty());
  }
  SUBCASE("a large factor") {
    SlowStage stage(8, 4);
    stage.run_and_look(5, kThirdSlow);
    CHECK(stage.records_of("slow").empty());
  }
}

TEST_CASE("A look takes part of the work in each iteration, and survives the end of workers") {
  SlowStage stage;
  stage.run_and_look(SlowRanks::kLooks - 1, kThirdSlow);
  stage.run(kThirdSlow);
  stage.now = stage.now + SlowRanks::kLeastPeriod;
  stage.slow.begin(stage.now);
  CHECK(stage.slow.advance(stage.now, 0ns) == stage.now);  // one worker is read
  stage.slow.begin(stage.now + 1h);                        // one is under way
  for (pid_t rank = 0; rank < 8; ++rank) {
    stage.workers.remove(*stage.workers.find(kNoProcess + rank));
  }
  int iterations = 0;
  while (!stage.slow.advance(stage.now, 0ns).is_never()) {
    ++iterations;
  }
  CHECK(iterations == 7 + 2);  // workers and names
  CHECK(stage.recorded("forward") == 1);
}

TEST_CASE("A worker whose job is not known yet, and one that is being killed, is not compared") {
  SlowStage stage(3);
  Worker& first = *stage.workers.find(kNoProcess);
  SUBCASE("not known") {
    first.facts->reset();
  }
  SUBCASE("being killed") {
    first.dying = true;
  }
  stage.run_and_look(5, {1, 1, 3});
  CHECK(stage.records_of("slow").empty());
}
