// From a soft deadline to its record, with time as the test says it is.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/warnings.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>

#include "tests/support/files.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct WarningStage {
  explicit WarningStage(bool evidence = true)
      : WarningStage(
            KillPolicy{.evidence = evidence ? EvidenceLevel::kProc : EvidenceLevel::kNone}) {}
  explicit WarningStage(KillPolicy kill_policy)
      : policy(kill_policy),
        warnings(policy, records, *log, side_threads,
                 [this](const WorkerIdentity&, const SoftDeadline& passed, std::uint64_t,
                        bool is_first) {
                   told.push_back(passed.id + " " + passed.scope.name +
                                  (is_first ? "" : ", not the first"));
                 }) {}

  WorkerIdentity identity_of(const Child& of) const {
    return {std::make_shared<const Process>(process_of(of)), facts};
  }

  // A scope of 10 s whose soft deadline, after 4 s, was 5 ms ago.
  Warnings::Scope scope(const std::string& name) {
    Warnings::Scope scope;
    ScopeTerms& terms = scope.passed.scope.terms;
    scope.passed.scope.name = name;
    scope.passed.when = {now.ns - 5'000'000};
    scope.passed.noticed = now;
    scope.passed.reason = "why";
    terms.acquired = {scope.passed.when.ns - 4'000'000'000};
    terms.deadline = terms.acquired + 10s;
    terms.timeout = 10s;
    scope.is_open = [this] { return is_open; };
    return scope;
  }
  void start(std::vector<std::string> names) {
    std::vector<Warnings::Scope> scopes;
    for (const std::string& name : names) {
      scopes.push_back(scope(name));
    }
    warnings.start(worker, std::move(scopes), now);
  }

  // Until nothing is gathered any more, within a bound.
  void deliver() {
    const Instant until = Instant::now() + 10s;
    while (warnings.collections() > 0) {
      REQUIRE(Instant::now() < until);
      pollfd news{side_threads.event_fd(), POLLIN, 0};
      ::poll(&news, 1, 10);
      side_threads.deliver();
    }
  }

  testing::Records recorded() { return records_of_log(*log, folder); }

  const KillPolicy policy;
  const Instant now = Instant::now();
  bool is_open = true;
  std::vector<std::string> told;
  Child child;
  FactsCell facts = std::make_shared<std::optional<WorkerFacts>>(WorkerFacts{});
  WorkerIdentity worker = identity_of(child);
  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  SideThreads side_threads;
  Warnings warnings;
};

}  // namespace

TEST_CASE("A warning waits for its evidence and has it in its record") {
  WarningStage stage;
  stage.start({"forward"});
  CHECK(stage.warnings.advance(stage.now) == stage.now + 2s);
  CHECK(stage.recorded().empty());
  stage.deliver();
  CHECK(stage.warnings.advance(stage.now + 1ms).is_never());
  const auto records = stage.recorded();
  REQUIRE(records.size() == 1);
  const testing::Record& warned = records[0];
  CHECK(warned.is("warned", "forward"));
  CHECK(warned.integer("pid") == stage.child.pid());
  CHECK(warned.text("reason") == "why");
  CHECK(warned.number("timeout_s") == 10);
  CHECK(warned.number("elapsed_s") == 4.005);
  CHECK(warned.number("soft_s") == 4);
  CHECK(warned.number("overdue_ms") == 5);
  CHECK(stage.warnings.warned().values() == CountsByScope::Values{{"forward", 1}});
  CHECK(warned.integer("soft_mono_ns") == stage.now.ns - 5'000'000);
  // Under ThreadSanitizer each process has another thread.
  CHECK(warned.array("threads").at(0)["tid"].get_int64().value() == stage.child.pid());
  CHECK(warned.has("state_name"));
  CHECK_FALSE(warned.has("omitted"));
}

TEST_CASE("Evidence that does not come delays a warning by its time limit") {
  WarningStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  stage.start({"forward"});
  stage.warnings.advance(stage.now);
  stage.warnings.advance({(stage.now + 2s).ns - 1});
  CHECK(stage.recorded().empty());
  CHECK(stage.warnings.advance(stage.now + 2s).is_never());
  REQUIRE(stage.recorded().size() == 1);
  CHECK(stage.recorded()[0].text("missing") == "the evidence was not complete after 2s");
  CHECK_FALSE(stage.recorded()[0].has("threads"));
}

TEST_CASE("Without evidence a warning waits for the command line and rank of the worker only") {
  WarningStage stage(false);
  stage.facts->reset();
  stage.start({"forward"});
  CHECK(stage.warnings.advance(stage.now) == stage.now + KillLadder::kFactsLimit);
  CHECK(stage.recorded().empty());
  WorkerFacts facts;
  facts.rank = 3;
  *stage.facts = facts;
  stage.warnings.advance(stage.now);
  REQUIRE(stage.recorded().size() == 1);
  CHECK(stage.recorded()[0].integer("rank") == 3);
  CHECK_FALSE(stage.recorded()[0].has("missing"));
}

TEST_CASE("A warning has evidence of its own level, whatever the level of an expiry is") {
  SUBCASE("evidence with warnings only") {
    WarningStage stage(
        KillPolicy{.evidence = EvidenceLevel::kNone, .warn_evidence = EvidenceLevel::kProc});
    stage.start({"forward"});
    stage.warnings.advance(stage.now);
    CHECK(stage.recorded().empty());
    stage.deliver();
    stage.warnings.advance(stage.now);
    REQUIRE(stage.recorded().size() == 1);
    CHECK(stage.recorded()[0].has("threads"));
  }
  SUBCASE("evidence with expiries only") {
    WarningStage stage(
        KillPolicy{.evidence = EvidenceLevel::kProc, .warn_evidence = EvidenceLevel::kNone});
    stage.start({"forward"});
    CHECK(stage.warnings.advance(stage.now).is_never());
    REQUIRE(stage.recorded().size() == 1);
    CHECK_FALSE(stage.recorded()[0].has("threads"));
    CHECK_FALSE(stage.recorded()[0].has("missing"));
  }
}

TEST_CASE("The scopes of a worker share its evidence") {
  WarningStage stage;
  stage.start({"outer", "inner"});
  stage.warnings.advance(stage.now);
  stage.deliver();
  stage.warnings.advance(stage.now);
  const auto records = stage.recorded();
  REQUIRE(records.size() == 2);
  CHECK(records[0].text("scope") == "outer");
  CHECK(records[0].has("threads"));
  CHECK(records[1].text("scope") == "inner");
  CHECK_FALSE(records[1].has("threads"));
  CHECK_FALSE(records[1].has("missing"));
}

TEST_CASE("Evidence from after the end of the scope is not recorded with the scope") {
  WarningStage stage;
  stage.start({"forward"});
  stage.warnings.advance(stage.now);
  stage.is_open = false;
  stage.deliver();
  stage.warnings.advance(stage.now);
  REQUIRE(stage.recorded().size() == 1);
  CHECK(stage.recorded()[0].text("missing") == "the scope ended before the evidence was complete");
  CHECK_FALSE(stage.recorded()[0].has("threads"));
}

TEST_CASE("A warning is recorded before the next record of its worker") {
  const Child other;
  WarningStage stage;
  stage.start({"forward"});
  stage.warnings.advance(stage.now);
  stage.warnings.flush(*stage.identity_of(other).process, "another's");
  CHECK(stage.recorded().empty());
  stage.warnings.flush(*stage.worker.process, "the worker ended first");
  REQUIRE(stage.recorded().size() == 1);
  CHECK(stage.recorded()[0].text("missing") == "the worker ended first");
  stage.deliver();  // too late
  CHECK(stage.warnings.advance(stage.now + 2s).is_never());
  CHECK(stage.recorded().size() == 1);
}

TEST_CASE(
    "Each warning that is recorded is passed on with its id, and the first of those that passed "
    "together is marked") {
  WarningStage stage;
  stage.start({"forward", "step"});
  stage.warnings.advance(stage.now);
  stage.deliver();
  stage.warnings.advance(stage.now + 1ms);
  const testing::Records recorded = stage.recorded();
  REQUIRE(recorded.size() == 2);
  CHECK(recorded[0].text("id").ends_with("-w1"));
  CHECK(recorded[1].text("id").ends_with("-w2"));
  REQUIRE(stage.told.size() == 2);
  CHECK(stage.told[0] == recorded[0].text("id") + " forward");
  CHECK(stage.told[1] == recorded[1].text("id") + " step, not the first");
}

TEST_CASE("Warnings collect evidence of two workers at a time and leave side threads to kills") {
  WarningStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 5; ++i) {
    children.push_back(std::make_unique<Child>());
    stage.warnings.start(stage.identity_of(*children.back()), {stage.scope("forward")}, stage.now);
  }
  stage.warnings.advance(stage.now);
  stage.warnings.advance(stage.now);
  CHECK(stage.warnings.collections() == 2);
}

TEST_CASE("Warnings of many workers all have evidence in the end") {
  WarningStage stage;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 5; ++i) {
    children.push_back(std::make_unique<Child>());
    stage.warnings.start(stage.identity_of(*children.back()), {stage.scope("forward")}, stage.now);
  }
  while (!stage.warnings.advance(stage.now).is_never()) {
    stage.deliver();
  }
  const auto records = stage.recorded();
  REQUIRE(records.size() == 5);
  for (const testing::Record& record : records) {
    CHECK(record.has("threads"));
  }
}

TEST_CASE("A limited number of warnings of a worker is recorded, and the others are counted") {
  WarningLimit limit;
  const Instant begin{1'000'000'000'000};
  CHECK(limit.take(kMaxWarningsPerWorker - 1, begin).count == kMaxWarningsPerWorker - 1);
  const auto last = limit.take(5, begin + 1s);
  CHECK(last.count == 1);
  CHECK(last.omitted == 0);
  CHECK(limit.take(3, begin + (kWarningPeriod - 1ns)).count == 0);
  const auto next = limit.take(2, begin + kWarningPeriod);
  CHECK(next.count == 2);
  CHECK(next.omitted == 7);
  CHECK(limit.take(1, begin + kWarningPeriod).omitted == 0);
}

TEST_CASE("Warnings that wait when the server stops are recorded") {
  WarningStage stage;
  stage.start({"forward"});
  stage.warnings.flush_all("the server was stopped first");
  REQUIRE(stage.recorded().size() == 1);
  CHECK(stage.recorded()[0].text("missing") == "the server was stopped first");
}
