// The scopes of a worker of the pipe: opening, judging and saving them for the next server.
// SPDX-License-Identifier: MIT
#include "timer_server/scopes/pipe_page.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/wake_protocol.hpp"
#include "tests/support/files.hpp"
#include "timer_server/scopes/page_guard.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kHalf = 1U << 31;

ScopeTerms terms_of(std::int64_t acquired, std::int64_t deadline, std::uint32_t soft_ms = 0) {
  ScopeTerms terms;
  terms.acquired = {acquired};
  terms.deadline = {deadline};
  terms.asked = terms.deadline.is_never() ? kForever : terms.deadline - terms.acquired;
  terms.timeout = terms.asked;
  terms.signal = 9;
  terms.soft_ms = soft_ms;
  return terms;
}

struct PipePageStage {
  explicit PipePageStage(WorkerPage::Terms page_terms = {}) : terms(page_terms) {
    PageGuard::install();
    page = std::make_shared<PipePage>(folder.path(), kPid, terms);
  }

  void acquire(std::string_view id, const ScopeTerms& asked, std::size_t shown = 0) const {
    REQUIRE(page->acquire(id, shown == 0 ? id.size() : shown, asked));
  }
  void acquire(std::string_view id, std::int64_t deadline) const {
    acquire(id, terms_of(1000, deadline));
  }
  WorkerPage::Found scan(Instant now) {
    WorkerPage::Found found;
    WorkerPage::Activity activity;
    next =
        page->scan({.now = now, .terms = terms, .given = missed, .resumed = {}}, found, activity);
    is_inside = activity.is_inside;
    return found;
  }
  // The names of the scopes that are due at `now`.
  std::vector<std::string> due(Instant now) { return names(scan(now).due); }
  std::vector<std::string> soft_due(Instant now) { return names(scan(now).soft); }
  std::vector<std::string> names(const std::vector<WorkerPage::Due>& found) const {
    std::vector<std::string> all;
    for (const WorkerPage::Due& each : found) {
      all.push_back(page->read(each.slot, each.word)->name);
    }
    return all;
  }
  // Gives the verdict on the only scope that is due at `now`.
  WorkerPage::Due expire(Instant now) {
    const WorkerPage::Found found = scan(now);
    REQUIRE(found.due.size() == 1);
    REQUIRE(page->try_expire(found.due[0].slot, found.due[0].word));
    return found.due[0];
  }

  void save() const { REQUIRE(page->save(process, facts)); }
  // Returns the scopes that the next server finds, in the order of names.
  [[nodiscard]] std::vector<SlotReading> kept() const {
    const auto next_page = PipePage::adopt(folder.path(), kPid, terms);
    return next_page ? (*next_page)->adopted() : std::vector<SlotReading>{};
  }
  [[nodiscard]] bool has_file() const { return ::access(path.c_str(), F_OK) == 0; }

  testing::TempFolder folder;
  static constexpr pid_t kPid = 4711;
  const std::string path = folder.path("4711");
  WorkerPage::Terms terms;
  GivenTime missed;
  const Process process = std::move(*open_process(::getpid()));
  std::optional<WorkerFacts> facts;
  std::shared_ptr<PipePage> page;
  Instant next;
  bool is_inside = false;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("A scope of the pipe is due from its deadline on, not a nanosecond before") {
  PipePageStage stage;
  stage.acquire("a", 5000);
  CHECK(stage.due({4999}).empty());
  CHECK(stage.next == Instant{5000});
  CHECK(stage.due({5000}) == Names{"a"});
}

TEST_CASE("Deadlines before the boot are due, and keep their order") {
  PipePageStage stage;
  constexpr std::int64_t kSecond = 1'000'000'000;
  stage.acquire("late", terms_of(1000, -100 * kSecond));
  stage.acquire("early", terms_of(1000, -1'700'000'000 * kSecond));
  stage.acquire("middle", terms_of(1000, -200 * kSecond));
  auto due = stage.scan({3 * kSecond}).due;
  std::ranges::sort(due, {}, &WorkerPage::Due::deadline);
  CHECK(stage.names(due) == Names{"early", "middle", "late"});
}

TEST_CASE("An acquire returns the scope's soft deadline or deadline, whichever is earlier") {
  const PipePageStage stage({.max_timeout = Duration{4000}, .warn_at = kHalf});
  CHECK(stage.page->acquire("a", 1, terms_of(1000, 3000)) == Instant{2000});
  CHECK(stage.page->acquire("b", 1, terms_of(1000, 9000)) == Instant{3000});  // half of 4,000
}

TEST_CASE("The name shown is the beginning of the identity") {
  const PipePageStage stage;
  stage.acquire("forward#2", terms_of(1000, 5000), 7);
  CHECK_FALSE(stage.page->has_open("forward"));
  CHECK(stage.page->has_open("forward#2"));
  CHECK(stage.page->open_slots().at(0).name == "forward");
}

TEST_CASE("A worker that opens too many scopes is refused and loses none") {
  PipePageStage stage;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    stage.acquire(fmt::format("s{}", i), 5000);
  }
  CHECK(!stage.page->acquire("one more", 8, terms_of(1000, 2000)));
  stage.acquire("s7", 9000);  // a renewal needs no slot
  CHECK(stage.page->open_count() == kMaxScopesPerWorker);
  CHECK(stage.page->release("s8"));
  stage.acquire("one more", 2000);
}

TEST_CASE("A scope of the pipe gets one warning from its soft deadline on") {
  PipePageStage stage({.max_timeout = kForever, .warn_at = kHalf});
  stage.acquire("half", terms_of(1'000, 9'000));
  stage.acquire("own", terms_of(1'000, 9'000'000, 2));
  stage.acquire("endless", terms_of(1'000, Instant::never().ns, 1));
  CHECK(stage.soft_due({4'999}).empty());
  CHECK(stage.next == Instant{5'000});
  CHECK(stage.soft_due({5'000}) == Names{"half"});
  CHECK(stage.soft_due({8'999}).empty());
  CHECK(stage.page->release("half"));
  CHECK(stage.soft_due({3'000'000}) == Names{"own", "endless"});
}

TEST_CASE("A renewal gets a warning of its own, a repeated acquire does not") {
  constexpr std::int64_t kMs = 1'000'000;
  PipePageStage stage({.max_timeout = kForever, .warn_at = kHalf});
  stage.acquire("a", terms_of(0, 1'000 * kMs));
  CHECK(stage.soft_due({600 * kMs}).size() == 1);
  stage.acquire("a", terms_of(kMs / 2, 1'000 * kMs + kMs / 2));
  CHECK(stage.soft_due({700 * kMs}).empty());
  CHECK(stage.next == Instant{1'000 * kMs + kMs / 2});
  stage.acquire("a", terms_of(700 * kMs, 1'700 * kMs));
  CHECK(stage.soft_due({1'199 * kMs}).empty());
  CHECK(stage.soft_due({1'200 * kMs}).size() == 1);
  // The same deadline with another timeout is a renewal.
  stage.acquire("a", terms_of(1'300 * kMs, 1'700 * kMs));
  CHECK(stage.soft_due({1'500 * kMs}).size() == 1);
  // Another scope in the same slot, with the same deadline.
  CHECK(stage.page->release("a"));
  stage.acquire("b", terms_of(1'300 * kMs, 1'700 * kMs));
  CHECK(stage.soft_due({1'600 * kMs}) == Names{"b"});
}

TEST_CASE("A scope of the pipe that was open in a gap is due later, until it is renewed") {
  PipePageStage stage;
  stage.acquire("a", 5000);
  stage.missed.add({4000}, Duration{700});
  CHECK(stage.due({5699}).empty());
  CHECK(stage.next == Instant{5700});
  CHECK(stage.due({5700}) == Names{"a"});
  stage.acquire("a", terms_of(5600, 6000));
  CHECK(stage.due({6000}) == Names{"a"});
}

TEST_CASE("A scope that had its warning and is given time gets no second one") {
  PipePageStage stage({.max_timeout = kForever, .warn_at = kHalf});
  stage.acquire("early", terms_of(0, 1'000));
  stage.acquire("late", terms_of(400, 1'400));
  CHECK(stage.soft_due({500}) == Names{"early"});
  stage.missed.add({600}, Duration{400});
  CHECK(stage.soft_due({900}).empty());
  CHECK(stage.next == Instant{1'100});  // half of the present timeout of `late`
  CHECK(stage.soft_due({1'100}) == Names{"late"});
  CHECK(stage.soft_due({1'399}).empty());
  CHECK(stage.due({1'400}) == Names{"early"});
}

TEST_CASE("Judged scopes that are renewed use no slots of other scopes") {
  PipePageStage stage;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    stage.acquire(fmt::format("s{}", i), 5000);
  }
  for (const WorkerPage::Due& each : stage.scan({5000}).due) {
    REQUIRE(stage.page->try_expire(each.slot, each.word));
  }
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    stage.acquire(fmt::format("s{}", i), 9000);
  }
  CHECK(stage.page->watched_count() == kMaxScopesPerWorker);
  stage.save();
  CHECK(!stage.page->acquire("one more", 8, terms_of(1000, 9000)));
}

TEST_CASE("release_all() releases the scopes that were not judged and returns their names") {
  PipePageStage stage;
  stage.acquire("judged", 5000);
  const WorkerPage::Due judged = stage.expire({5000});
  stage.acquire("outer#1", terms_of(1000, 9000), 5);
  CHECK(stage.page->release_all() == Names{"outer"});
  CHECK(stage.due({9000}).empty());
  CHECK_FALSE(stage.page->was_released_late(judged.slot, judged.word));
}

TEST_CASE("The worker is inside a scope that it has opened itself, until its release or verdict") {
  PipePageStage stage;
  ScopeTerms whole = terms_of(1000, 9000);
  whole.whole_process = true;
  stage.acquire("whole", whole);
  stage.scan({2000});
  CHECK_FALSE(stage.is_inside);
  stage.acquire("own", 5000);
  stage.scan({2000});
  CHECK(stage.is_inside);
  CHECK(stage.page->activity().is_inside);
  stage.expire({5000});
  stage.scan({5000});
  CHECK_FALSE(stage.is_inside);
  CHECK_FALSE(stage.page->release("whole"));
}

TEST_CASE("If there are many open scopes, those opened last are listed") {
  PipePageStage stage;
  for (int i = 0; i < 20; ++i) {
    stage.acquire(fmt::format("s{}", i), terms_of(1000 + (i * 7) % 20, 9000));
  }
  stage.acquire("s3", terms_of(2000, 9000));
  Names listed;
  for (const SlotReading& reading : stage.page->open_slots(3)) {
    listed.push_back(reading.name);
  }
  std::ranges::sort(listed);
  CHECK(listed == Names{"s14", "s17", "s3"});  // of 1,018, 1,019 and 2,000
}

TEST_CASE("Scopes of the pipe are saved with all their fields") {
  const PipePageStage stage;
  ScopeTerms terms = terms_of(1000, 5000, 7);
  terms.grace = grace_of(1500us);
  terms.tid = 12;
  stage.acquire("forward#2", terms, 7);
  stage.save();
  const auto kept = stage.kept();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].id == "forward#2");
  CHECK(kept[0].name == "forward");
  CHECK(kept[0].deadline == Instant{5000});
  CHECK(kept[0].acquired == Instant{1000});
  CHECK(kept[0].signal == 9);
  CHECK(kept[0].tid == 12);
  CHECK(kept[0].soft_ms == 7);
  CHECK(*kept[0].grace_ms == 2);  // rounded up: no worker gets less than it requested
  const auto next = PipePage::adopt(stage.folder.path(), PipePageStage::kPid, {});
  REQUIRE(next);
  CHECK((*next)->claims().pid == ::getpid());
  CHECK((*next)->claims().start_time == stage.process.start_time);
}

TEST_CASE("The worker's job is saved as soon as it is known") {
  PipePageStage stage;
  stage.acquire("forward", 5000);
  stage.save();
  stage.facts = worker_facts_claimed("10", "2", "job 7");
  stage.acquire("step", 5000);
  stage.save();
  const auto next = PipePage::adopt(stage.folder.path(), PipePageStage::kPid, {});
  REQUIRE(next);
  CHECK((*next)->claims().rank == "10");
  CHECK((*next)->claims().local_rank == "2");
  CHECK((*next)->claims().job_id == "job 7");
  CHECK((*next)->claims().comm == stage.process.comm);
  CHECK(stage.kept().size() == 2);
}

TEST_CASE("A scope that is opened and released between two savings is never written") {
  const PipePageStage stage;
  stage.acquire("forward", 5000);
  CHECK(stage.page->release("forward"));
  CHECK(stage.page->needs_save());
  stage.save();
  CHECK_FALSE(stage.page->needs_save());
  CHECK(!stage.has_file());
}

TEST_CASE("A verdict that is in the log only is restored, with its kill under way or over") {
  const PipePageStage stage;
  stage.acquire("forward", 5000);
  stage.acquire("step", 6000);
  stage.save();
  const auto next = PipePage::adopt(stage.folder.path(), PipePageStage::kPid, {});
  REQUIRE(next);
  (*next)->restore_verdict("forward", false);
  (*next)->restore_verdict("step", true);
  (*next)->restore_verdict("unknown", true);
  const auto judged = (*next)->judged_slots();
  REQUIRE(judged.size() == 1);
  CHECK(judged[0].reading.name == "forward");
  CHECK(judged[0].word == 5000);
  CHECK((*next)->open_count() == 1);
}

TEST_CASE("If two slots have one scope, the next server keeps the later slot and frees the other") {
  for (const bool is_later_first : {false, true}) {
    CAPTURE(is_later_first);
    const PipePageStage stage;
    stage.acquire("step", terms_of(is_later_first ? 4000 : 2000, 9000));
    stage.acquire("other", terms_of(is_later_first ? 2000 : 4000, 8000));
    stage.save();
    // The second slot gets the name of the first one.
    const UniqueFd file(::open(stage.path.c_str(), O_RDWR | O_CLOEXEC));
    std::array<std::byte, sizeof(SlotName)> name{};
    REQUIRE(read_at(file.get(), name.data(), name.size(), kNamesAt));
    REQUIRE(write_at(file.get(), name.data(), name.size(), kNamesAt + sizeof(SlotName)));
    const auto kept = stage.kept();
    REQUIRE(kept.size() == 1);
    CHECK(kept[0].acquired == Instant{4000});
    CHECK(kept[0].deadline == Instant{is_later_first ? 9000 : 8000});
  }
}

TEST_CASE("A scope without a name is saved without one, in a slot that had one before") {
  const PipePageStage stage;
  stage.acquire("named", 5000);
  stage.save();
  CHECK(stage.page->release("named"));
  stage.acquire("", 5000);
  stage.save();
  REQUIRE(stage.kept().size() == 1);
  CHECK(stage.kept()[0].id.empty());
}

TEST_CASE("A thousand and twenty-four scopes of the pipe fit, and each finds its own name") {
  const PipePageStage stage;
  std::map<std::string, std::int64_t> deadlines;
  for (int i = 0; i < 1024; ++i) {
    const std::string name = fmt::format("scope {}", i);
    deadlines[name] = 5000 + i;
    stage.acquire(name, deadlines[name]);
  }
  stage.save();
  const auto kept = stage.kept();
  REQUIRE(kept.size() == 1024);
  for (const SlotReading& reading : kept) {
    CHECK(deadlines.at(reading.name) == reading.deadline.ns);
  }
}

TEST_CASE("A page that cannot be written is an error once, and leaves no stale scopes") {
  PipePageStage stage;
  const std::string missing = stage.folder.path("missing");
  stage.page = std::make_shared<PipePage>(missing, PipePageStage::kPid, stage.terms);
  stage.acquire("b", 5000);
  CHECK(!stage.page->save(stage.process, {}));
  stage.acquire("c", 6000);
  CHECK(stage.page->save(stage.process, {}));
  CHECK(!stage.has_file());
  CHECK(stage.due({6000}) == Names{"b", "c"});  // they are still watched
}

TEST_CASE("A grace period is saved in whole milliseconds, rounded up") {
  CHECK_FALSE(grace_of(std::nullopt));
  CHECK(*grace_of(0ns) == 0ms);
  CHECK(*grace_of(1500us) == 2ms);
  CHECK(grace_of(kMaxTimeout)->count() == kLongestGraceMs);
}
