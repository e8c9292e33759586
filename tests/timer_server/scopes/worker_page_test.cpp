// A mapped page as the server reads it. The test acts as the worker.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <unistd.h>

#include <limits>

#include "common/limits.hpp"
#include "common/slot_times.hpp"
#include "common/wake_protocol.hpp"
#include "tests/support/children.hpp"
#include "tests/support/files.hpp"
#include "tests/support/test_page.hpp"
#include "timer_server/scopes/mapped_page.hpp"
#include "timer_server/scopes/page_guard.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// A page in a file, and the worker's own mapping of it.
struct PageStage {
  explicit PageStage(TestPage content = {}) {
    PageGuard::install();
    content.write(path);
    mapping = std::make_unique<MappedFile>(
        std::move(*MappedFile::map(path, MappedFile::Access::kReadWrite, kPageBytes)));
    page = *MappedPage::open(path, "w-1");
  }

  [[nodiscard]] Slot& slot(std::size_t index) const {
    return PageLayout(mapping->data()).slot(index);
  }

  testing::TempFolder folder;
  const std::string path = folder.path("w-1");
  std::unique_ptr<MappedFile> mapping;
  std::shared_ptr<MappedPage> page;
};

struct SoftDue {
  std::uint32_t warn_at = 0;
  std::vector<WorkerPage::Due> slots;
};

// Adds what a scan finds to `due` and `soft`.
Instant scan(WorkerPage& page, Instant now, Duration max_timeout, std::vector<WorkerPage::Due>& due,
             SoftDue& soft, const GivenTime& missed = {}, Instant resumed = {}) {
  WorkerPage::Activity activity;
  WorkerPage::Found found;
  const Instant next = page.scan({.now = now,
                                  .terms = {.max_timeout = max_timeout, .warn_at = soft.warn_at},
                                  .given = missed,
                                  .resumed = resumed},
                                 found, activity);
  due.insert(due.end(), found.due.begin(), found.due.end());
  soft.slots.insert(soft.slots.end(), found.soft.begin(), found.soft.end());
  return next;
}

std::optional<Instant> idle_due(WorkerPage& page, const WorkerPage::Activity::IdleWatch& watch,
                                Instant last_left, const GivenTime& missed = {},
                                Instant resumed = {}) {
  return page.idle_due(watch, last_left,
                       {.now = {}, .terms = {}, .given = missed, .resumed = resumed});
}

TestPage with_scopes(std::initializer_list<std::int64_t> words) {
  TestPage page;
  std::size_t index = 0;
  for (const std::int64_t word : words) {
    page.open(index++, {.word = word});
  }
  return page;
}

}  // namespace

TEST_CASE("A scan finds the scopes that are due, and the time of the next scan") {
  const PageStage stage(with_scopes({5000, slot_word::kFree, 1000, slot_word::kNoDeadline, 3000,
                                     slot_word::expired(900), slot_word::kJudged}));
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {999}, kForever, due, soft) == Instant{1000});
  CHECK(due.empty());
  CHECK(scan(*stage.page, {3000}, kForever, due, soft) == Instant{5000});
  REQUIRE(due.size() == 2);
  CHECK(due[0].slot == 2);
  CHECK(due[1].word == 3000);
  due.clear();
  CHECK(scan(*stage.page, {5000}, kForever, due, soft).is_never());
}

TEST_CASE("A scan finds each soft deadline once, and the next scan is in time for it") {
  TestPage content;
  content.open(0, {.word = 9'000, .started = 1'000});               // half of it: 5,000
  content.open(1, {.word = 20'000'000, .soft_ms = 2});              // 2,001,000
  content.open(2, {.word = slot_word::kNoDeadline, .soft_ms = 1});  // 1,001,000
  content.open(3, {.word = slot_word::kNoDeadline});
  const PageStage stage(content);
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = 1U << 31, .slots = {}};
  CHECK(scan(*stage.page, {4'999}, kForever, due, soft) == Instant{5'000});
  CHECK(soft.slots.empty());
  CHECK(scan(*stage.page, {5'000}, kForever, due, soft) == Instant{9'000});
  REQUIRE(soft.slots.size() == 1);
  CHECK(soft.slots[0].slot == 0);
  CHECK(soft.slots[0].word == 9'000);
  CHECK(soft.slots[0].deadline == Instant{5'000});
  soft.slots.clear();
  CHECK(scan(*stage.page, {8'999}, kForever, due, soft) == Instant{9'000});
  CHECK(soft.slots.empty());
  CHECK(due.empty());
  CHECK(stage.page->is_open(0, 9'000));
  CHECK_FALSE(stage.page->is_open(0, 9'001));
  CHECK(try_release(stage.slot(0), 9'000));
  CHECK_FALSE(stage.page->is_open(0, 9'000));
  CHECK(scan(*stage.page, {9'000}, kForever, due, soft) == Instant{1'001'000});
  CHECK(scan(*stage.page, {1'001'000}, kForever, due, soft) == Instant{2'001'000});
  REQUIRE(soft.slots.size() == 1);
  CHECK(soft.slots[0].slot == 2);
  soft.slots.clear();
  CHECK(scan(*stage.page, {10'000'000}, kForever, due, soft) == Instant{20'000'000});
  REQUIRE(soft.slots.size() == 1);
  CHECK(soft.slots[0].slot == 1);
  CHECK(due.empty());
}

TEST_CASE("A renewal and the slot's next scope get warnings of their own") {
  const PageStage stage(with_scopes({10'000}));  // started at 1,000
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = 1U << 31, .slots = {}};
  scan(*stage.page, {6'000}, kForever, due, soft);
  REQUIRE(soft.slots.size() == 1);
  stage.slot(0).started = 7'000;
  CHECK(try_renew(stage.slot(0), 10'000, 11'000));
  CHECK(scan(*stage.page, {8'999}, kForever, due, soft) == Instant{9'000});
  CHECK(soft.slots.size() == 1);
  scan(*stage.page, {9'000}, kForever, due, soft);
  REQUIRE(soft.slots.size() == 2);
  CHECK(soft.slots[1].word == 11'000);
  CHECK(try_release(stage.slot(0), 11'000));
  stage.slot(0).started = 9'000;
  set_deadline(stage.slot(0), 11'001);
  scan(*stage.page, {10'500}, kForever, due, soft);
  CHECK(soft.slots.size() == 3);
  CHECK(due.empty());
}

TEST_CASE("A scope that is past its deadline as well has expired and gets no warning") {
  const PageStage stage(with_scopes({2'000}));
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = 1U << 31, .slots = {}};
  scan(*stage.page, {2'000}, kForever, due, soft);
  CHECK(due.size() == 1);
  CHECK(soft.slots.empty());
}

TEST_CASE("--max-timeout brings the warning forward with the deadline") {
  const PageStage stage(with_scopes({slot_word::kNoDeadline}));  // started at 1,000
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = 1U << 31, .slots = {}};
  CHECK(scan(*stage.page, {1'000}, 200ns, due, soft) == Instant{1'100});
  CHECK(scan(*stage.page, {1'100}, 200ns, due, soft) == Instant{1'200});
  CHECK(soft.slots.size() == 1);
}

TEST_CASE("A judged scope can still be read, and is listed with the open ones") {
  const PageStage stage(with_scopes({1000, 2000}));
  CHECK(stage.page->try_expire(0, 1000));
  const auto reading = stage.page->read(0, slot_word::expired(1000));
  REQUIRE(reading);
  CHECK(reading->name == "forward");
  CHECK(reading->deadline == Instant{1000});
  CHECK(stage.page->open_slots().size() == 2);
  const auto judged = stage.page->judged_slots();
  REQUIRE(judged.size() == 1);
  CHECK(judged[0].word == 1000);
  stage.page->reopen(0, 1000);
  CHECK(stage.slot(0).deadline == 1000);
}

TEST_CASE("A truncated page reads as empty and is not whole, and the server survives") {
  const PageStage stage(with_scopes({1000, 2000}));
  REQUIRE(::truncate(stage.path.c_str(), 0) == 0);
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {5000}, kForever, due, soft).is_never());
  CHECK(due.empty());
  CHECK(!stage.page->is_whole());
  CHECK(!stage.page->try_expire(0, 1000));
  CHECK(stage.page->open_slots().empty());
}

TEST_CASE("A page that is truncated in its middle is not used at all") {
  TestPage content;
  for (std::size_t i = 0; i < 1024; ++i) {
    content.open(i, {.word = 1000});
  }
  const PageStage stage(content);
  REQUIRE(::truncate(stage.path.c_str(), 8192) == 0);
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  scan(*stage.page, {5000}, kForever, due, soft);
  CHECK(due.empty());
  CHECK(!stage.page->is_whole());
}

TEST_CASE("A number of slots over the limit is reduced to the limit") {
  TestPage content = with_scopes({1000});
  content.header().slots = 0xFFFF'FFFF;
  const PageStage stage(content);
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  scan(*stage.page, {1000}, kForever, due, soft);
  CHECK(due.size() == 1);
}

TEST_CASE("The kernel names the holder of a page") {
  const PageStage stage;
  CHECK(stage.page->owner().error().errno_value == ESRCH);
  SteppedChild worker({[&] {
    static std::optional<FileLock> lock;  // until the child ends
    auto taken = FileLock::take(stage.path);
    if (taken) {
      lock.emplace(std::move(*taken));
    }
    return lock.has_value();
  }});
  REQUIRE(worker.next());
  CHECK(*stage.page->owner() == worker.pid());
  worker.end();
  CHECK(!stage.page->owner());
}

TEST_CASE("A scope over the longest timeout is returned once until it is renewed") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = 1000});
  content.open(1, {.timeout = 100, .word = 1000});
  const PageStage stage(content);
  CHECK(stage.page->take_slots_over(Duration{200}).size() == 1);
  CHECK(stage.page->take_slots_over(Duration{200}).empty());
  REQUIRE(stage.page->try_expire(0, 1000));
  CHECK(stage.page->take_slots_over(Duration{200}).empty());
  stage.page->reopen(0, 1000);
  stage.slot(0).deadline = 2000;
  CHECK(stage.page->take_slots_over(Duration{200}).size() == 1);
  REQUIRE(stage.page->try_expire(0, 2000));
  stage.slot(1).timeout = 500;
  REQUIRE(stage.page->try_expire(1, 1000));  // judged before it was given
  CHECK(stage.page->take_slots_over(Duration{200}).size() == 1);
}

TEST_CASE("A scope that was open in a gap is due later, until it is renewed") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = 1'500, .started = 1'000});
  content.open(1, {.timeout = 5'000, .word = 6'000, .started = 1'000});
  const PageStage stage(content);
  GivenTime missed;
  missed.add({1'400}, Duration{300});
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {1'799}, kForever, due, soft, missed) == Instant{1'800});
  CHECK(due.empty());
  CHECK(scan(*stage.page, {1'800}, kForever, due, soft, missed) == Instant{6'300});
  REQUIRE(due.size() == 1);
  CHECK(due[0].deadline == Instant{1'800});
  CHECK(due[0].word == 1'500);  // the word that the verdict replaces
  due.clear();
  stage.slot(0).started = 1'700;
  REQUIRE(try_renew(stage.slot(0), 1'500, 2'200));
  CHECK(scan(*stage.page, {2'200}, kForever, due, soft, missed) == Instant{6'300});
  CHECK(due.size() == 1);
}

TEST_CASE("A renewal that is being written keeps the time of a gap") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = 1'500, .started = 1'000});
  const PageStage stage(content);
  GivenTime missed;
  missed.add({1'400}, Duration{300});
  stage.slot(0).started = 1'700;  // the word is written later
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {1'799}, kForever, due, soft, missed) == Instant{1'800});
  CHECK(due.empty());
}

TEST_CASE("A gap gives at most the timeout that --max-timeout grants") {
  TestPage content;
  content.open(0, {.timeout = 5'000, .word = 6'000, .started = 1'000});
  const PageStage stage(content);
  GivenTime missed;
  missed.add({2'000}, Duration{9'000});
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {2'000}, Duration{2'000}, due, soft, missed) == Instant{5'000});
}

TEST_CASE("The scopes of a worker that was resumed have their full timeout from then on") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = 1'500, .started = 1'000});
  content.open(1, {.timeout = 500, .word = 2'500, .started = 2'000});
  const PageStage stage(content);
  std::vector<WorkerPage::Due> due;
  SoftDue soft;
  CHECK(scan(*stage.page, {2'299}, kForever, due, soft, {}, {1'800}) == Instant{2'300});
  CHECK(scan(*stage.page, {2'300}, kForever, due, soft, {}, {1'800}) == Instant{2'500});
  CHECK(due.size() == 1);
}

TEST_CASE("The scopes that get time for a gap are counted") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = 1'500, .started = 1'000});
  content.open(1, {.timeout = 500, .word = 3'500, .started = 3'000});
  content.open(2, {.word = slot_word::kNoDeadline, .started = 1'000});
  content.open(3, {.timeout = 500, .word = slot_word::expired(1'500), .started = 1'000});
  const PageStage stage(content);
  GivenTime missed;
  const WorkerPage::Scan scan{.now = {2'000}, .terms = {}, .given = missed, .resumed = {}};
  CHECK(stage.page->count_given_time(scan, {2'000}) == 1);
  missed.add({2'000}, Duration{100});
  CHECK(stage.page->count_given_time(scan, {2'500}) == 0);  // it has got its time
  CHECK(stage.page->count_given_time(scan, {4'000}) == 1);
}

namespace {

// A page with an idle timeout of 1,000 ns in slot 0.
TestPage with_idle_watch() {
  TestPage page;
  page.open(0, {.name = "(idle)",
                .timeout = 1'000,
                .word = slot_word::kIdleWatch,
                .flags = slot_flag::kIdle});
  return page;
}

WorkerPage::Activity activity_of(WorkerPage& page) {
  WorkerPage::Activity activity;
  WorkerPage::Found found;
  page.scan({.now = {1}, .terms = {}, .given = {}, .resumed = {}}, found, activity);
  CHECK(found.due.empty());
  return activity;
}

}  // namespace

TEST_CASE("A worker in no scope is idle since its latest release on any page") {
  TestPage content = with_idle_watch();
  content.open(1, {.word = 900'000});
  content.open(2, {.word = slot_word::kFree});
  content.open(3, {.word = slot_word::kFree});
  content.open(4, {.word = slot_word::kFree});
  const PageStage stage(std::move(content));
  CHECK(activity_of(*stage.page).is_inside);
  stage.slot(1).deadline = slot_word::kJudged;  // the worker is still in it
  CHECK(activity_of(*stage.page).is_inside);
  stage.slot(1).deadline = slot_word::kPaused + 5;
  CHECK(activity_of(*stage.page).is_inside);
  stage.slot(1).deadline = slot_word::kFree;
  CHECK_FALSE(activity_of(*stage.page).is_inside);
  CHECK(activity_of(*stage.page).last_left == Instant{});
  stage.slot(1).left = 4'000;
  stage.slot(2).left = 6'000;
  stage.slot(3).left = 5'000;
  stage.slot(4).left = Instant::never().ns;  // of an earlier pause, or made up by the worker
  auto activity = activity_of(*stage.page);
  CHECK(activity.last_left == Instant{6'000});
  REQUIRE(activity.watches.size() == 1);
  CHECK(activity.watches[0].timeout == Duration{1'000});
  CHECK(activity.watches[0].since == Instant{1'000});
  CHECK(idle_due(*stage.page, activity.watches[0], activity.last_left) == Instant{7'000});
  // Timeouts from 1 ns to the longest one count.
  for (const std::int64_t timeout : {std::int64_t{1}, std::int64_t{kMaxTimeout.count()}}) {
    stage.slot(0).timeout = timeout;
    CHECK(activity_of(*stage.page).watches.size() == 1);
  }
  for (const std::int64_t timeout :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{kMaxTimeout.count() + 1}, kForever.count(),
        std::numeric_limits<std::int64_t>::min()}) {
    CAPTURE(timeout);
    stage.slot(0).timeout = timeout;
    CHECK(activity_of(*stage.page).watches.empty());
  }
}

TEST_CASE("An idle timeout gets one verdict for each idle period, and continues after its kill") {
  TestPage content = with_idle_watch();
  content.open(1, {.word = slot_word::kFree});
  const PageStage stage(std::move(content));
  stage.slot(1).left = 6'000;
  const auto watch = activity_of(*stage.page).watches.at(0);
  REQUIRE(stage.page->try_expire_idle(0, {7'000}));
  CHECK_FALSE(stage.page->try_expire_idle(0, {7'000}));
  CHECK(stage.slot(0).deadline == slot_word::expired(7'000));
  const auto reading = stage.page->read(0, slot_word::expired(7'000));
  REQUIRE(reading);
  CHECK(reading->acquired == Instant{6'000});
  CHECK(reading->deadline == Instant{7'000});
  CHECK(reading->asked == Duration{1'000});
  CHECK_FALSE(stage.page->was_released_late(0, 7'000));
  SUBCASE("spared, it is due again only after another scope") {
    stage.page->finish(0, 7'000);
    CHECK(stage.slot(0).deadline == slot_word::kIdleWatch);
    CHECK(!idle_due(*stage.page, watch, {6'000}));
    CHECK(idle_due(*stage.page, watch, {8'000}) == Instant{9'000});
  }
  SUBCASE("a worker that opens an unwatched scope before the signal is no longer idle") {
    stage.slot(0).started = 7'500;
    CHECK(stage.page->was_released_late(0, 7'000));
  }
  SUBCASE("an earlier server has judged and spared it") {
    stage.page->finish(0, 7'000);
    const auto next = *MappedPage::open(stage.path, "w-1");
    const auto again = activity_of(*next).watches.at(0);
    CHECK(idle_due(*next, again, {6'000}) == Instant{7'000});
    next->restore_idle_verdict({7'000});
    CHECK(!idle_due(*next, again, {6'000}));
  }
  SUBCASE("a verdict that its server did not record is revoked") {
    stage.page->reopen(0, 7'000);
    CHECK(stage.slot(0).deadline == slot_word::kIdleWatch);
  }
}

TEST_CASE("An idle timeout is not an open scope before its verdict") {
  const PageStage stage(with_idle_watch());
  CHECK(stage.page->open_count() == 0);
  CHECK(stage.page->open_slots().empty());
  REQUIRE(stage.page->try_expire_idle(0, {7'000}));
  CHECK(stage.page->open_count() == 1);
  CHECK(stage.page->open_slots().at(0).name == "(idle)");
  CHECK(stage.page->watched_count() == 0);
  CHECK_FALSE(stage.page->activity().is_inside);
  stage.page->finish(0, 7'000);
  CHECK(stage.page->open_count() == 0);
}

TEST_CASE("An idle timeout is neither cut by --max-timeout nor warned about") {
  const PageStage stage(with_idle_watch());
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = std::uint32_t{1} << 31, .slots = {}};
  CHECK(scan(*stage.page, {9'000}, Duration{200}, due, soft).is_never());
  CHECK(due.empty());
  CHECK(soft.slots.empty());
  CHECK(stage.page->take_slots_over(Duration{200}).empty());
  REQUIRE(stage.page->try_expire_idle(0, {7'000}));
  CHECK(stage.page->take_slots_over(Duration{200}).empty());
}

TEST_CASE("An idle worker that was resumed has its full timeout, until it leaves another scope") {
  const PageStage stage(with_idle_watch());
  const auto watch = activity_of(*stage.page).watches.at(0);
  CHECK(idle_due(*stage.page, watch, {6'000}, {}, {49'000}) == Instant{50'000});
  CHECK(idle_due(*stage.page, watch, {60'000}, {}, {49'000}) == Instant{61'000});
  GivenTime missed;
  missed.add({6'500}, Duration{400});
  CHECK(idle_due(*stage.page, watch, {6'000}, missed) == Instant{7'400});
}

TEST_CASE("A paused scope gets no time and no warning") {
  TestPage content;
  content.open(0, {.timeout = 500, .word = slot_word::kPaused + 2'000, .soft_ms = 1});
  const PageStage stage(std::move(content));
  std::vector<WorkerPage::Due> due;
  SoftDue soft{.warn_at = 1U << 31, .slots = {}};
  CHECK(scan(*stage.page, {1'000'000'000}, kForever, due, soft, {}, {500'000}).is_never());
  CHECK(due.empty());
  CHECK(soft.slots.empty());
  CHECK(scan(*stage.page, {2'999}, Duration{1'000}, due, soft) == Instant{3'000});
  CHECK(scan(*stage.page, {3'000}, Duration{1'000}, due, soft).is_never());
  CHECK(due.size() == 1);
  // It is resumed at 10,000 with 400 left: a soft deadline before that is not reported again.
  Slot& slot = stage.slot(0);
  slot.deadline = 10'400;
  slot.started = 9'900;
  slot.left = 400;
  slot.flags = slot_flag::kResumed;
  slot.soft_ms = 0;
  CHECK(soft_time_of(slot, 10'400, {10'400}, 1U << 31) == Instant{10'150});
  slot.left = 200;
  CHECK(soft_time_of(slot, 10'400, {10'400}, 1U << 31).is_never());
}
