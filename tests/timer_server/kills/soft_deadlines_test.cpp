// From what a scan has found to a warning, with workers that the test has made up.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/soft_deadlines.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/timer_server/verdict_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// Scopes from 0 to 10 ms, whose soft deadline is at 2 ms.
struct SoftStage : VerdictParts {
  void open(std::string_view id, std::uint32_t soft_ms = 2) const {
    ScopeTerms terms = terms_between({0}, {10'000'000});
    terms.soft_ms = soft_ms;
    acquire(worker, id, terms);
  }
  void scan_at(Instant woke) { soft.note(scan.run(woke, board, Instant::never()).soft); }
  void scan_once() { scan_at({3'000'000}); }
  testing::Records warned() {
    soft.warn();
    warnings.advance(Instant::now());
    return records_of("warned");
  }

  EndingProcess process;
  Worker& worker = add_known_worker(process.take(kNoProcess));
  SoftDeadlines soft{{workers, policy, warnings}};
};

}  // namespace

TEST_CASE("A scope whose soft deadline has passed is warned about, once") {
  SoftStage stage;
  stage.open("forward");
  stage.scan_once();
  const testing::Records warned = stage.warned();
  REQUIRE(warned.size() == 1);
  CHECK(warned[0].is("warned", kNoProcess));
  CHECK(warned[0].text("scope") == "forward");
  CHECK(warned[0].integer("soft_mono_ns") == 2'000'000);
  CHECK(warned[0].text("reason") == "its soft deadline of 2ms has passed");
  CHECK_FALSE(warned[0].has("omitted"));
  CHECK(stage.warned().size() == 1);
}

TEST_CASE("The warnings of a worker come with the earliest soft deadline first") {
  SoftStage stage;
  stage.open("second", 2);
  stage.open("first", 1);
  stage.open("third", 3);
  stage.scan_once();
  const testing::Records warned = stage.warned();
  REQUIRE(warned.size() == 3);
  CHECK(warned[0].text("scope") == "first");
  CHECK(warned[1].text("scope") == "second");
  CHECK(warned[2].text("scope") == "third");
}

TEST_CASE("No warning is given of what is over once the verdicts are carried out") {
  SoftStage stage;
  stage.open("forward");
  stage.scan_once();
  SUBCASE("the scope was released") {
    stage.worker.pipe->release("forward");
  }
  SUBCASE("the scope was renewed") {
    stage.acquire(stage.worker, "forward", terms_between({0}, {90'000'000}));
  }
  SUBCASE("the worker is being killed") {
    stage.worker.dying = true;
  }
  SUBCASE("the worker has exited") {
    stage.process.end();
  }
  SUBCASE("the worker was removed") {
    stage.workers.remove(stage.worker);
  }
  SUBCASE("another process has its pid") {
    stage.workers.remove(stage.worker);
    stage.add_known_worker(made_up_process(kNoProcess));
  }
  SUBCASE("another scan has found nothing") {
    stage.scan_once();
  }
  CHECK(stage.warned().empty());
}

TEST_CASE("Of many warnings about a worker 16 are given, and the others counted in a later one") {
  SoftStage stage;
  (void)stage.worker.warning_limit.take(kMaxWarningsPerWorker + 7, Instant{});
  for (int i = 0; i < 20; ++i) {
    stage.open(fmt::format("s{}", i));
  }
  stage.scan_once();
  const testing::Records warned = stage.warned();
  REQUIRE(warned.size() == 16);
  CHECK(warned[0].integer("omitted") == 7);
  CHECK_FALSE(warned[1].has("omitted"));
  stage.open("one more");
  stage.scan_once();
  CHECK(stage.warned().size() == 16);
}
