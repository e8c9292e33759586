// How overdue scopes end, on a page of the test's, with time as the test says it is.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/overdue_scopes.hpp"

#include <doctest/doctest.h>

#include <array>
#include <utility>

#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/test_log.hpp"
#include "timer_server/scopes/worker_page.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr Instant kScopeOpened{100'000'000'000};
constexpr Instant kScopeDue = kScopeOpened + 10s;

class OneSlotPage : public WorkerPage {
 public:
  void add_ended_scopes(EndedScopesByName& to) override { to.insert(ended.begin(), ended.end()); }
  [[nodiscard]] Slot& slot() { return slots_[0]; }

  EndedScopesByName ended;

 protected:
  [[nodiscard]] std::size_t slot_count() const override { return slots_.size(); }
  [[nodiscard]] Slot* first_slot() const override { return slots_.data(); }
  [[nodiscard]] std::string id_of(std::size_t /*slot*/) override { return "load"; }

 private:
  mutable std::array<Slot, 1> slots_{};
};

struct OverdueStage {
  void set(std::int64_t word, Instant acquired = kScopeOpened, Instant started = kScopeOpened) {
    page->slot().acquired = acquired.ns;
    page->slot().started = started.ns;
    page->slot().deadline = word;
  }
  [[nodiscard]] Expiry expiry() const {
    Expiry expiry;
    expiry.id = "x-1";
    expiry.scope.name = "load";
    expiry.scope.terms.acquired = kScopeOpened;
    expiry.scope.terms.deadline = kScopeDue;
    expiry.place = {page, 0, kScopeDue.ns};
    return expiry;
  }
  [[nodiscard]] SoftDeadline warning() const {
    SoftDeadline warning;
    warning.id = "x-w1";
    warning.scope.name = "load";
    warning.scope.terms.acquired = kScopeOpened;
    warning.when = kScopeOpened + 4s;
    warning.place = {page, 0, kScopeDue.ns};
    return warning;
  }
  testing::Records recorded() { return records_of_log(*log, folder); }

  std::shared_ptr<OneSlotPage> page = std::make_shared<OneSlotPage>();
  Child child;
  WorkerIdentity worker{std::make_shared<const Process>(process_of(child)),
                        std::make_shared<std::optional<WorkerFacts>>(WorkerFacts{})};
  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  OverdueScopes overdue{records, *log};
};

}  // namespace

TEST_CASE("A spared scope that is released is recorded with the time that its page tells") {
  OverdueStage stage;
  stage.set(slot_word::kJudged);
  stage.overdue.follow(stage.worker, stage.expiry());
  CHECK(stage.overdue.advance(kScopeDue) == kScopeDue + OverdueScopes::kFirstLook);
  CHECK_FALSE(stage.overdue.advance(kScopeDue + 1s).is_never());
  CHECK(stage.recorded().empty());
  stage.page->ended["load"] = {{kScopeOpened + 9s, 1s}, {kScopeDue + 1500ms, 11'500ms}};
  stage.set(slot_word::kFree);
  CHECK(stage.overdue.advance(kScopeDue + 2s).is_never());
  const testing::Records records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].is("released_late", "load"));
  CHECK(records[0].text("id") == "x-1");
  CHECK(records[0].integer("pid") == stage.child.pid());
  CHECK(records[0].number("late_ms") == 1500);
  CHECK(stage.overdue.count() == 0);
  CHECK(stage.overdue.released_late().values() == CountsByScope::Values{{"load", 1}});
}

TEST_CASE("Without statistics the release is as late as the look that finds it") {
  OverdueStage stage;
  stage.set(slot_word::kJudged);
  stage.overdue.follow(stage.worker, stage.expiry());
  SUBCASE("a free slot") {
    stage.set(slot_word::kFree);
  }
  SUBCASE("the next scope in the slot") {
    stage.set((kScopeDue + 1h).ns, kScopeDue + 100ms, kScopeDue + 100ms);
  }
  stage.overdue.advance(kScopeDue + 200ms);
  const testing::Records records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].number("late_ms") == 200);
}

TEST_CASE("Looks become rarer with the age of what is overdue") {
  OverdueStage stage;
  stage.set(slot_word::kJudged);
  stage.overdue.follow(stage.worker, stage.expiry());
  CHECK(stage.overdue.advance(kScopeDue + 100ms) == kScopeDue + 150ms);
  CHECK(stage.overdue.advance(kScopeDue + 16s) == kScopeDue + 17s);
  CHECK(stage.overdue.advance(kScopeDue + 10h) == kScopeDue + 10h + OverdueScopes::kLongestPause);
  // Nothing is looked at before it is due.
  stage.set(slot_word::kFree);
  CHECK(stage.overdue.advance(kScopeDue + 10h + 1s) ==
        kScopeDue + 10h + OverdueScopes::kLongestPause);
  CHECK(stage.recorded().empty());
}

TEST_CASE(
    "A scope that was released before its kill ended, and an idle timeout, are not followed") {
  OverdueStage stage;
  Expiry released = stage.expiry();
  released.released_at = kScopeDue + 1ms;
  stage.overdue.follow(stage.worker, released);
  Expiry idle = stage.expiry();
  idle.scope.terms.is_idle = true;
  stage.overdue.follow(stage.worker, idle);
  Expiry of_earlier_server = stage.expiry();
  of_earlier_server.place.page.reset();
  stage.overdue.follow(stage.worker, of_earlier_server);
  CHECK(stage.overdue.count() == 0);
}

TEST_CASE("A scope with a warning is recorded when it is released") {
  OverdueStage stage;
  stage.set(kScopeDue.ns);
  stage.overdue.follow(stage.worker, stage.warning());
  stage.overdue.advance(kScopeOpened + 5s);
  CHECK(stage.recorded().empty());
  stage.page->ended["load"] = {{kScopeOpened + 6s, 6s}};
  stage.set(slot_word::kFree);
  stage.overdue.advance(kScopeOpened + 7s);
  const testing::Records records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].is("warning_ended", "load"));
  CHECK(records[0].text("id") == "x-w1");
  CHECK(records[0].text("result") == "released");
  CHECK(records[0].number("after_s") == 2);
}

TEST_CASE("A scope with a warning may be paused, and a renewal ends the warning") {
  OverdueStage stage;
  stage.set(kScopeDue.ns);
  stage.overdue.follow(stage.worker, stage.warning());
  stage.set(slot_word::kPaused + (kScopeOpened + 5s).ns);
  stage.overdue.advance(kScopeOpened + 6s);
  CHECK(stage.overdue.count() == 1);
  stage.set((kScopeDue + 7s).ns, kScopeOpened, kScopeOpened + 7s);
  stage.overdue.advance(kScopeOpened + 8s);
  const testing::Records records = stage.recorded();
  REQUIRE(records.size() == 1);
  CHECK(records[0].text("result") == "renewed");
  CHECK(records[0].number("after_s") == 3);
}

TEST_CASE("A scope that expires after its warning has no record of the warning's end") {
  OverdueStage stage;
  stage.set(kScopeDue.ns);
  stage.overdue.follow(stage.worker, stage.warning());
  stage.set(slot_word::expired(kScopeDue.ns));
  CHECK(stage.overdue.advance(kScopeDue + 1ms).is_never());
  CHECK(stage.overdue.count() == 0);
  CHECK(stage.recorded().empty());
}

TEST_CASE("A scope that is spared and released between two looks has no end of its warning") {
  OverdueStage stage;
  stage.set(kScopeDue.ns);
  stage.overdue.follow(stage.worker, stage.warning());
  Expiry of_next_scope = stage.expiry();
  of_next_scope.scope.terms.acquired = kScopeOpened + 1s;
  stage.overdue.note_expired(*stage.worker.process, of_next_scope);
  CHECK(stage.overdue.count() == 1);
  stage.overdue.note_expired(*stage.worker.process, stage.expiry());
  CHECK(stage.overdue.count() == 0);
  stage.set(slot_word::kFree);
  stage.overdue.advance(kScopeDue + 1s);
  CHECK(stage.recorded().empty());
  // The spared scope is still followed.
  stage.set(slot_word::kJudged);
  stage.overdue.follow(stage.worker, stage.expiry());
  stage.overdue.note_expired(*stage.worker.process, stage.expiry());
  CHECK(stage.overdue.count() == 1);
}

TEST_CASE("The last look at a worker's scopes is when it has ended") {
  OverdueStage stage;
  stage.set(slot_word::kJudged);
  stage.overdue.follow(stage.worker, stage.expiry());
  const Child another;
  stage.overdue.forget(process_of(another), kScopeDue + 1ms);
  CHECK(stage.overdue.count() == 1);
  SUBCASE("it was released") {
    stage.set(slot_word::kFree);
    stage.page->ended["load"] = {{kScopeDue + 20ms, 10'020ms}};
    stage.overdue.forget(*stage.worker.process, kScopeDue + 30ms);
    const testing::Records records = stage.recorded();
    REQUIRE(records.size() == 1);
    CHECK(records[0].number("late_ms") == 20);
  }
  SUBCASE("it was not") {
    stage.overdue.forget(*stage.worker.process, kScopeDue + 30ms);
    CHECK(stage.recorded().empty());
  }
  CHECK(stage.overdue.count() == 0);
}

TEST_CASE("No more than a limited number of scopes is followed") {
  OverdueStage stage;
  stage.set(slot_word::kJudged);
  for (std::size_t i = 0; i < OverdueScopes::kMaxFollowed + 5; ++i) {
    stage.overdue.follow(stage.worker, stage.expiry());
  }
  CHECK(stage.overdue.count() == OverdueScopes::kMaxFollowed);
}
