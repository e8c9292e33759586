// SPDX-License-Identifier: MIT
#include "timer_server/scopes/worker_page.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

#include "tests/support/files.hpp"
#include "timer_server/scopes/page_folder.hpp"
#include "timer_server/scopes/pipe_page.hpp"
#include "timer_server/scopes/workers.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

TEST_CASE("the memory of names begins with a memory page of 4, 16 or 64 KB") {
  for (const std::size_t memory_page : {4096UL, 16'384UL, 65'536UL}) {
    const std::size_t begin = WorkerPage::names_begin(memory_page);
    CAPTURE(memory_page);
    CHECK(begin % memory_page == 0);
    CHECK(begin <= kNamesAt);
    CHECK(begin + memory_page > kNamesAt);
  }
}

namespace {

const LostTime kNothingLost;

// What a scan of a page finds.
struct Look {
  Look(WorkerPage& page, Instant now, const LostTime& worker = kNothingLost,
       Instant previous = Instant::never())
      : next(page.scan({.now = now,
                        .terms = {},
                        .server = kNothingLost,
                        .worker = worker,
                        .previous = previous},
                       found, activity)) {}

  WorkerPage::Found found;
  WorkerPage::Activity activity;
  Instant next;
};

// A page with one slot, which changes as the client's do.
class OneSlot final : public WorkerPage {
 public:
  static constexpr Duration kTimeout{60s};

  explicit OneSlot(Instant at) { open(at); }
  void open(Instant at) {
    slot_.acquired = at.ns;
    slot_.timeout = kTimeout.count();
    renew(at);
  }
  void signal_first(Duration grace) {
    slot_.flags = slot_flag::kSignalFirst;
    slot_.signal = SIGTERM;
    slot_.grace_ms = grace_ms_of(grace);
  }
  void watch_idleness(std::int64_t timeout) {
    slot_.timeout = timeout;
    slot_.flags = slot_flag::kIdle;
    slot_.deadline = slot_word::kIdleWatch;
  }
  void renew(Instant at) {
    slot_.started = at.ns;
    slot_.flags = 0;
    slot_.deadline = (at + kTimeout).ns;
  }
  void release(Instant noted = {}) {
    slot_.left = noted.ns;
    slot_.deadline = slot_word::kFree;
  }
  void pause(Instant at) {
    slot_.left = std::max<std::int64_t>(slot_.deadline - at.ns, 1);
    slot_.started += std::max<std::int64_t>(at.ns + 1 - slot_.deadline, 0);
    slot_.flags = slot_flag::kPausedByCaller;
    slot_.deadline = slot_word::kPaused + at.ns;
  }
  void resume(Instant at) {
    slot_.started += at.ns - (slot_.deadline - slot_word::kPaused);
    slot_.flags = slot_flag::kResumed;
    slot_.deadline = at.ns + slot_.left;
  }
  // Returns when the scope is due, as a scan finds at `now`.
  Instant due(Instant now, const LostTime& worker) {
    const Look look(*this, now, worker);
    return look.found.due.empty() ? look.next : look.found.due.front().deadline;
  }
  // Returns the shortest timeout that a scan finds after one that began at `previous`.
  Duration shortest(Instant previous, Instant now = Instant::now()) {
    return Look(*this, now, kNothingLost, previous).activity.shortest;
  }

 private:
  [[nodiscard]] std::size_t slot_count() const override { return 1; }
  [[nodiscard]] Slot* first_slot() const override { return &slot_; }
  [[nodiscard]] std::string id_of(std::size_t) override { return "step"; }

  mutable Slot slot_{};
};

// The scopes that this process has by lines, and the file of them.
struct PipeStage {
  // Those of a scope that was opened at `begin`.
  [[nodiscard]] SlotReading terms(Duration left) const {
    SlotReading scope;
    scope.acquired = begin;
    scope.deadline = begin + left;
    scope.asked = left;
    return scope;
  }
  void acquire(std::string_view id, Duration left) const {
    REQUIRE(page->acquire(id, id.size(), terms(left)));
  }
  void save(const WorkerFacts& facts = {}) const { REQUIRE(page->save(worker, facts)); }
  // Returns the page of the next server; null: there is none.
  [[nodiscard]] std::shared_ptr<PipePage> adopt() const {
    auto adopted = PipePage::adopt(folder.path(), worker.pid, {});
    REQUIRE(adopted);
    return *adopted;
  }

  const testing::TempFolder folder;
  const Process worker = std::move(*open_process(::getpid()));
  const std::string file = folder.path(std::to_string(worker.pid));
  const Instant begin = Instant::now();
  std::shared_ptr<PipePage> page =
      std::make_shared<PipePage>(folder.path(), worker.pid, WorkerPage::Terms{});
};

}  // namespace

// Each line is a history of seconds. lose A B: that time was lost; due A B: a look at A finds the
// scope due at B, within some nanoseconds after a pause (-: never).
TEST_CASE("a scope gets a time that was lost before its pauses once") {
  for (const char* const history :
       {"lose 10 70, due 71 130, pause 100, due 101 -, resume 200, due 200 230, pause 210, "
        "due 211 -, lose 220 240, resume 250, due 250 270, lose 255 260, due 261 275, renew 265, "
        "due 266 325",
        // Lost and paused before the first look.
        "lose 10 70, pause 75, due 76 -, resume 300, due 300 355",
        // Two pauses with one look in each.
        "lose 10 30, due 31 80, pause 40, due 41 -, resume 140, pause 140, due 141 -, resume 240, "
        "due 240 280",
        // Renewed, paused and resumed between two looks.
        "lose 10 50, due 51 100, renew 55, pause 56, resume 57, due 57 116",
        // Renewed in a pause.
        "lose 10 50, due 51 100, pause 60, due 61 -, renew 70, pause 70, resume 80, due 80 140",
        // Lost in a pause, before the first look at it.
        "lose 1 2, due 50 61, pause 51, lose 55 95, due 95 -, resume 100, due 100 110",
        // Paused between two looks, with time left.
        "lose 10 30, due 31 80, pause 40, resume 140, due 140 180, due 150 180, due 151 180",
        // Paused after the deadline, between the second look and the third: for all the server
        // knows, at 90 s.
        "lose 10 70, due 71 130, lose 75 85, due 90 140, pause 100, resume 200, due 200 250",
        // Resumed, overdue and paused again while time was lost.
        "lose 1 2, pause 30, due 31 -, resume 50, pause 90, lose 40 100, due 100 -, resume 200, "
        "due 200 231",
        // Paused after the deadline, between the last look and the next.
        "lose 10 20, due 61 70, pause 66, resume 200, due 200 209",
        "lose 10 20, due 61 70, due 65 70, pause 66, resume 200, due 200 205",
        // Renewed without a pause.
        "lose 1 2, due 3 61, renew 5, due 20 65",
        // The scope before in the slot was paused.
        "lose 1 2, pause 5, due 6 -, open 100, lose 110 170, pause 175, due 176 -, resume 400, "
        "due 400 455"}) {
    CAPTURE(history);
    const auto at = [](const std::string& since) {
      return Instant{1'000'000'000'000} + std::chrono::seconds{std::stoi(since)};
    };
    LostTime worker;
    OneSlot page(at("0"));
    std::istringstream steps(history);
    bool was_paused = false;
    for (std::string step; std::getline(steps >> std::ws, step, ',');) {
      CAPTURE(step);
      std::istringstream words(step);
      std::string what;
      std::string when;
      std::string then;
      words >> what >> when >> then;
      was_paused = was_paused || what == "pause";
      if (what == "lose") {
        worker.add(at(when), at(then));
      } else if (what == "pause") {
        page.pause(at(when));
      } else if (what == "resume") {
        page.resume(at(when));
      } else if (what == "renew") {
        page.renew(at(when));
        was_paused = false;
      } else if (what == "open") {
        page.open(at(when));
        was_paused = false;
      } else if (const Instant due = page.due(at(when), worker); then == "-") {
        CHECK(due.is_never());
      } else {
        CHECK(due >= at(then));
        CHECK(due <= at(then) + (was_paused ? 10ns : 0ns));
      }
    }
  }
}

TEST_CASE("a scope that is signalled first has its whole grace after a signal that comes late") {
  const Instant opened{1'000'000'000'000};
  for (const Duration late : {0s, 9s, 11s}) {
    CAPTURE(late.count());
    OneSlot page(opened);
    page.signal_first(10s);
    const Instant now = opened + OneSlot::kTimeout + late;
    const Look look(page, now);
    REQUIRE(look.found.to_signal.size() == 1);
    page.note_signalled(look.found.to_signal.front(), now);
    CHECK(page.due(now, kNothingLost) == now + 10s);
    LostTime worker;
    worker.add(now + 7s, now + 8s);  // in the grace
    CHECK(page.due(now + 8s, worker) == now + 11s);
  }
}

TEST_CASE(
    "a scope was left as noted, also if an idle timeout has its slot, or when it was opened") {
  const Instant opened = Instant::now();
  OneSlot page(opened);
  page.release();
  CHECK(page.activity().last_left == opened);
  OneSlot noted(opened);
  noted.release(opened + -1s);
  noted.watch_idleness(Duration{1h}.count());
  CHECK(noted.activity().last_left == opened + -1s);
}

TEST_CASE("an idle timeout of zero, or over the longest one, is none") {
  OneSlot page(Instant::now());
  for (const auto& [timeout, count] :
       {std::pair(std::int64_t{0}, 0U), std::pair(std::int64_t{1}, 1U),
        std::pair(std::int64_t{kMaxTimeout.count()}, 1U),
        std::pair(std::int64_t{kMaxTimeout.count()} + 1, 0U)}) {
    page.watch_idleness(timeout);
    const WorkerPage::Activity activity = page.activity();
    CHECK(activity.watches.size() == count);
    CHECK(activity.shortest == (count == 0 ? kForever : Duration{timeout}));
  }
}

TEST_CASE("the timeout of a scope that was opened and released since the last scan counts") {
  OneSlot page(Instant{10});
  page.release();
  CHECK(page.shortest(Instant{9}) == OneSlot::kTimeout);
  CHECK(page.shortest(Instant{10}) == kForever);
  CHECK(page.shortest(Instant{11}) == kForever);
}

TEST_CASE("the grace of a scope that is signalled first counts once its timeout has passed") {
  OneSlot page(Instant{10});
  page.signal_first(10s);
  const Instant timed_out = Instant{10} + OneSlot::kTimeout;
  CHECK(page.shortest(Instant{9}, timed_out) == 10s);
  CHECK(page.shortest(Instant{9}, timed_out + -1ns) == OneSlot::kTimeout);
}

TEST_CASE("a scope has waited for the server since its last change, unless a scan has seen it") {
  const auto at = [](std::chrono::seconds since) { return Instant{} + since; };
  OneSlot page(at(100s));
  LostTime server;
  const auto unseen = [&](std::chrono::seconds now, std::chrono::seconds previous,
                          Instant before = Instant::never()) {
    const WorkerPage::Scan scan{.now = at(now),
                                .terms = {},
                                .server = server,
                                .worker = kNothingLost,
                                .previous = at(previous)};
    return page.longest_unseen(before, scan).length;
  };
  CHECK(unseen(101s, 50s) == 0s);  // which is tolerated
  CHECK(unseen(110s, 50s) == 10s);
  CHECK(unseen(300s, 50s) == 60s);  // its timeout
  CHECK(unseen(110s, 100s) == 0s);
  CHECK(unseen(110s, 50s, at(160s)) == 0s);
  CHECK(unseen(110s, 50s, at(161s)) == 10s);
  page.note_new();
  CHECK(unseen(110s, 110s, at(0s)) == 10s);
  server.add(at(95s), at(104s));
  CHECK(unseen(110s, 50s) == 6s);
}

TEST_CASE(
    "a worker has no more warnings than the limit in any period, and the others are counted") {
  const Instant begin = Instant{} + 1h;
  WarningLimit limit;
  CHECK(limit.take(kMaxWarningsPerWorker + 4, begin, begin).count == kMaxWarningsPerWorker);
  CHECK(limit.take(3, begin, begin).count == 0);
  const Instant later = begin + kWarningPeriod;
  const WarningLimit::Share next = limit.take(1, later, later);
  CHECK(next.count == 1);
  CHECK(next.omitted == 7);
  WarningLimit other;
  CHECK(other.take(1, begin, begin + 1ms).count == 1);
  CHECK(other.take(kMaxWarningsPerWorker, begin + 9s, begin + 9s).count ==
        kMaxWarningsPerWorker - 1);
  CHECK(other.take(1, later, later + 2ms).count == 0);
  CHECK(other.take(kMaxWarningsPerWorker, later + 1ms, begin + 11s).count == 1);
}

TEST_CASE("the note of a page's owner is replaced, and goes with the page and its stacks") {
  const testing::TempFolder temp;
  const auto folder = PageFolder::make(temp.path());
  REQUIRE(folder);
  folder->confirm("w-1", {4711, 5, 6});
  folder->confirm("w-1", {4712, 7, 8});
  const auto owner = folder->confirmed_owner("w-1");
  REQUIRE(owner);
  CHECK(owner->pid == 4712);
  CHECK(owner->start_time == 7);
  CHECK(owner->start_stack == 8);
  testing::write_file(folder->page_path("w-1"), "");
  testing::write_file(folder->stacks_path("w-1"), "");
  folder->remove("w-1");
  CHECK_FALSE(folder->confirmed_owner("w-1"));
  CHECK_FALSE(testing::exists(folder->page_path("w-1")));
  CHECK_FALSE(testing::exists(folder->stacks_path("w-1")));
}

TEST_CASE("the file of a worker of the pipe has its command, ranks and job, or else is removed") {
  PipeStage stage;
  stage.acquire("step", 1h);
  WorkerFacts read;
  read.rank = 3;
  read.local_rank = 1;
  read.job_id = "8812";
  read.are_known = true;
  for (const WorkerFacts& facts : {read, WorkerFacts{}}) {
    CAPTURE(facts.are_known);
    stage.save(facts);
    stage.page = stage.adopt();
    CHECK(stage.page->claims().comm == stage.worker.comm);
    CHECK(stage.page->claims().rank == "3");
    CHECK(stage.page->claims().local_rank == "1");
    CHECK(stage.page->claims().job_id == "8812");
  }
  testing::write_file(stage.file, "");  // as of a server that was killed while it made the file
  CHECK_FALSE(stage.adopt());
  CHECK_FALSE(testing::exists(stage.file));
}

TEST_CASE("a scope of the pipe that is acquired again is warned about again if its span differs") {
  const PipeStage stage;
  const auto is_warned = [&](Duration deadline, Duration asked) {
    SlotReading terms = stage.terms(deadline);
    terms.asked = asked;
    terms.soft_ms = 10;
    REQUIRE(stage.page->acquire("step", 4, terms));
    return !Look(*stage.page, stage.begin + 1s).found.soft.empty();
  };
  CHECK(is_warned(1h, 1h));
  CHECK_FALSE(is_warned(1h + 500us, 1h));  // by a client that has lost its server
  CHECK(is_warned(1h + 2ms, 1h));
  CHECK(is_warned(1h + 2ms, 2h));
}

TEST_CASE("a scope that was signalled first is not warned about its soft deadline any more") {
  const PipeStage stage;
  SlotReading terms = stage.terms(500ms);
  terms.flags = slot_flag::kSignalFirst;
  terms.signal = SIGTERM;
  terms.grace_ms = 60'000;
  terms.soft_ms = 10;
  REQUIRE(stage.page->acquire("step", 4, terms));
  const Look look(*stage.page, stage.begin + 1s);
  REQUIRE(look.found.to_signal.size() == 1);
  stage.page->note_signalled(look.found.to_signal.front(), stage.begin + 1s);
  CHECK(Look(*stage.page, stage.begin + 1s).found.soft.empty());
}

TEST_CASE("a kill cancels the scopes of the pipe that are due after a time") {
  const PipeStage stage;
  // The name is not the whole identity of "later".
  CHECK(stage.page->acquire("due", 3, stage.terms(1h)));
  CHECK(stage.page->acquire("later", 3, stage.terms(2h)));
  CHECK(stage.page->cancel_all(stage.begin + 1h) == std::vector<std::string>{"lat"});
  CHECK(stage.page->has_open("due"));
  CHECK(stage.page->cancel_all() == std::vector<std::string>{"due"});
}

// The earlier server was killed while it wrote the slots: the verdict's is as it was before.
TEST_CASE("of a scope that is twice in the file of a worker of the pipe, the later one counts") {
  for (const bool is_later_lower : {true, false}) {
    CAPTURE(is_later_lower);
    const PipeStage stage;
    PipePage& page = *stage.page;
    stage.acquire("first", 1h);
    stage.acquire("twice", 1h);
    const auto open = page.open_slots();
    const auto judged = std::ranges::find(open, "twice", &SlotReading::id);
    REQUIRE(judged != open.end());
    REQUIRE(page.try_expire(1, judged->word));  // the second slot that was taken
    stage.save();
    const std::string before = testing::read_file(stage.file);
    if (is_later_lower) {
      page.release("first");
    }
    SlotReading later = stage.terms(2h);
    later.acquired = later.acquired + 1ns;
    REQUIRE(page.acquire("twice", 5, later));
    stage.save();
    std::string bytes = testing::read_file(stage.file);
    constexpr std::size_t at = kSlotsAt + sizeof(Slot);
    bytes.replace(at, sizeof(Slot), before, at, sizeof(Slot));
    testing::write_file(stage.file, bytes);
    const auto next = stage.adopt();
    CHECK(next->has_open("twice"));
    CHECK(next->judged_slots().empty());
    CHECK(next->release("twice"));
    CHECK(next->open_slots().size() == (is_later_lower ? 0 : 1));
  }
}

TEST_CASE("a cancelled scope is in the file until the kill ends, whatever its worker opens") {
  const PipeStage stage;
  const auto saved = [&] {
    stage.save();
    std::string text;
    for (const SlotReading& scope : stage.adopt()->open_slots()) {
      text += scope.name + (scope.deadline == stage.begin + 1h ? " 1h, " : " 2h, ");
    }
    return text;
  };
  stage.acquire("a", 1h);
  stage.acquire("b", 1h);
  CHECK(saved() == "a 1h, b 1h, ");
  CHECK(stage.page->cancel_all().size() == 2);
  stage.acquire("c", 2h);
  CHECK(saved() == "a 1h, b 1h, c 2h, ");
  CHECK_FALSE(stage.page->needs_save());
  stage.page->end_cancelled();
  CHECK(stage.page->needs_save());
  CHECK(saved() == "c 2h, ");
}
