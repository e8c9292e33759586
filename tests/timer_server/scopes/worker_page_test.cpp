// SPDX-License-Identifier: MIT
#include "timer_server/scopes/worker_page.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
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
  void release() { slot_.deadline = slot_word::kFree; }
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
    const LostTime none;
    Found found;
    Activity activity;
    const Instant next =
        scan({.now = now, .terms = {}, .server = none, .worker = worker}, found, activity);
    return found.due.empty() ? next : found.due.front().deadline;
  }
  // Returns the shortest timeout that a scan finds after one that began at `previous`.
  Duration shortest(Instant previous) {
    const LostTime none;
    Found found;
    Activity activity;
    scan({.now = Instant::now(), .terms = {}, .server = none, .worker = none, .previous = previous},
         found, activity);
    return activity.shortest;
  }

 private:
  [[nodiscard]] std::size_t slot_count() const override { return 1; }
  [[nodiscard]] Slot* first_slot() const override { return &slot_; }
  [[nodiscard]] std::string id_of(std::size_t) override { return "step"; }

  mutable Slot slot_{};
};

}  // namespace

TEST_CASE("a scope gets a time that was lost before its pauses once") {
  const auto at = [](std::chrono::seconds since) { return Instant{1'000'000'000'000} + since; };
  const auto is = [](Instant due, Instant expected) {
    return due >= expected && due <= expected + 10ns;
  };
  LostTime worker;
  OneSlot page(at(0s));
  SUBCASE("seen before, in and after the pauses") {
    worker.add(at(10s), at(70s));
    CHECK(page.due(at(71s), worker) == at(130s));
    page.pause(at(100s));
    CHECK(page.due(at(101s), worker).is_never());
    page.resume(at(200s));
    CHECK(is(page.due(at(200s), worker), at(230s)));
    page.pause(at(210s));
    CHECK(page.due(at(211s), worker).is_never());
    worker.add(at(220s), at(240s));  // the scope's time stood still
    page.resume(at(250s));
    CHECK(is(page.due(at(250s), worker), at(270s)));
    worker.add(at(255s), at(260s));
    CHECK(is(page.due(at(261s), worker), at(275s)));
    page.renew(at(265s));
    CHECK(page.due(at(266s), worker) == at(325s));
  }
  SUBCASE("lost and paused before the first look") {
    worker.add(at(10s), at(70s));
    page.pause(at(75s));
    CHECK(page.due(at(76s), worker).is_never());
    page.resume(at(300s));
    CHECK(is(page.due(at(300s), worker), at(355s)));
  }
  SUBCASE("two pauses with one look in each") {
    worker.add(at(10s), at(30s));
    CHECK(page.due(at(31s), worker) == at(80s));
    page.pause(at(40s));
    CHECK(page.due(at(41s), worker).is_never());
    page.resume(at(140s));
    page.pause(at(140s));
    CHECK(page.due(at(141s), worker).is_never());
    page.resume(at(240s));
    CHECK(is(page.due(at(240s), worker), at(280s)));
  }
  SUBCASE("renewed, paused and resumed between two looks") {
    worker.add(at(10s), at(50s));
    CHECK(page.due(at(51s), worker) == at(100s));
    page.renew(at(55s));
    page.pause(at(56s));
    page.resume(at(57s));
    CHECK(is(page.due(at(57s), worker), at(116s)));
  }
  SUBCASE("renewed in a pause") {
    worker.add(at(10s), at(50s));
    CHECK(page.due(at(51s), worker) == at(100s));
    page.pause(at(60s));
    CHECK(page.due(at(61s), worker).is_never());
    page.renew(at(70s));
    page.pause(at(70s));
    page.resume(at(80s));
    CHECK(is(page.due(at(80s), worker), at(140s)));
  }
  SUBCASE("lost in a pause, before the first look at it") {
    worker.add(at(1s), at(2s));
    CHECK(page.due(at(50s), worker) == at(61s));
    page.pause(at(51s));
    worker.add(at(55s), at(95s));
    CHECK(page.due(at(95s), worker).is_never());
    page.resume(at(100s));
    CHECK(is(page.due(at(100s), worker), at(110s)));
  }
  SUBCASE("paused between two looks, with time left") {
    worker.add(at(10s), at(30s));
    CHECK(page.due(at(31s), worker) == at(80s));
    page.pause(at(40s));
    page.resume(at(140s));
    for (const auto look : {140s, 150s, 151s}) {
      CHECK(is(page.due(at(look), worker), at(180s)));
    }
  }
  SUBCASE("paused after the deadline, between the second look and the third") {
    worker.add(at(10s), at(70s));
    CHECK(page.due(at(71s), worker) == at(130s));
    worker.add(at(75s), at(85s));
    CHECK(page.due(at(90s), worker) == at(140s));
    page.pause(at(100s));  // for all the server knows, at 90 s
    page.resume(at(200s));
    CHECK(is(page.due(at(200s), worker), at(250s)));
  }
  SUBCASE("resumed, overdue and paused again while time was lost") {
    worker.add(at(1s), at(2s));
    page.pause(at(30s));
    CHECK(page.due(at(31s), worker).is_never());
    page.resume(at(50s));
    page.pause(at(90s));
    worker.add(at(40s), at(100s));
    CHECK(page.due(at(100s), worker).is_never());
    page.resume(at(200s));
    CHECK(is(page.due(at(200s), worker), at(231s)));
  }
  SUBCASE("paused after the deadline, between the last look and the next") {
    worker.add(at(10s), at(20s));
    CHECK(page.due(at(61s), worker) == at(70s));
    auto looked = 61s;
    SUBCASE("that was the first") {}
    SUBCASE("that was the second") {
      looked = 65s;
      CHECK(page.due(at(looked), worker) == at(70s));
    }
    page.pause(at(66s));
    page.resume(at(200s));
    CHECK(is(page.due(at(200s), worker), at(270s - looked)));
  }
  SUBCASE("renewed without a pause") {
    worker.add(at(1s), at(2s));
    CHECK(page.due(at(3s), worker) == at(61s));
    page.renew(at(5s));
    CHECK(page.due(at(20s), worker) == at(65s));
  }
  SUBCASE("the scope before in the slot was paused") {
    worker.add(at(1s), at(2s));
    page.pause(at(5s));
    CHECK(page.due(at(6s), worker).is_never());
    page.open(at(100s));
    worker.add(at(110s), at(170s));
    page.pause(at(175s));
    CHECK(page.due(at(176s), worker).is_never());
    page.resume(at(400s));
    CHECK(is(page.due(at(400s), worker), at(455s)));
  }
}

TEST_CASE("a scope whose release is not noted was left after it was opened") {
  const Instant opened = Instant::now();
  OneSlot page(opened);
  page.release();
  CHECK(page.activity().last_left == opened);
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

TEST_CASE("a scope has waited for the server since its last change, unless a scan has seen it") {
  const auto at = [](std::chrono::seconds since) { return Instant{} + since; };
  OneSlot page(at(100s));
  LostTime server;
  const LostTime worker;
  const auto unseen = [&](std::chrono::seconds now, std::chrono::seconds previous,
                          Instant before = Instant::never()) {
    return page.longest_unseen(before, {.now = at(now),
                                        .terms = {},
                                        .server = server,
                                        .worker = worker,
                                        .previous = at(previous)});
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

TEST_CASE("the warnings that were not recorded are counted by the next one that is") {
  const Instant begin = Instant{} + 1h;
  WarningLimit limit;
  CHECK(limit.take(kMaxWarningsPerWorker + 4, begin).count == kMaxWarningsPerWorker);
  CHECK(limit.take(3, begin).count == 0);
  const WarningLimit::Share next = limit.take(1, begin + kWarningPeriod);
  CHECK(next.count == 1);
  CHECK(next.omitted == 7);
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

TEST_CASE("the file of a worker of the pipe names its command, ranks and job, also after a read") {
  const testing::TempFolder folder;
  const Process worker = std::move(*open_process(::getpid()));
  auto page = std::make_shared<PipePage>(folder.path(), worker.pid, WorkerPage::Terms{});
  SlotReading terms;
  terms.deadline = Instant::now() + 1h;
  REQUIRE(page->acquire("step", 4, terms));
  WorkerFacts read;
  read.rank = 3;
  read.local_rank = 1;
  read.job_id = "8812";
  read.are_known = true;
  for (const WorkerFacts& facts : {read, WorkerFacts{}}) {
    CAPTURE(facts.are_known);
    REQUIRE(page->save(worker, facts));
    page = *PipePage::adopt(folder.path(), worker.pid, {});
    CHECK(page->claims().comm == worker.comm);
    CHECK(page->claims().rank == "3");
    CHECK(page->claims().local_rank == "1");
    CHECK(page->claims().job_id == "8812");
  }
}

TEST_CASE("a file without a header, whose server was killed while it made it, is removed") {
  const testing::TempFolder folder;
  const std::string file = folder.path(std::to_string(::getpid()));
  testing::write_file(file, "");
  const auto adopted = PipePage::adopt(folder.path(), ::getpid(), {});
  REQUIRE(adopted);
  CHECK_FALSE(*adopted);
  CHECK_FALSE(testing::exists(file));
}

TEST_CASE("a scope of the pipe that is acquired again is warned about again if its span differs") {
  const testing::TempFolder folder;
  PipePage page(folder.path(), ::getpid(), {});
  const Instant now = Instant::now();
  const auto is_warned = [&](Duration deadline, Duration asked) {
    SlotReading terms;
    terms.acquired = now + -1s;
    terms.deadline = now + deadline;
    terms.asked = asked;
    terms.soft_ms = 10;
    REQUIRE(page.acquire("step", 4, terms));
    const LostTime none;
    WorkerPage::Found found;
    WorkerPage::Activity activity;
    page.scan({.now = now, .terms = {}, .server = none, .worker = none}, found, activity);
    return !found.soft.empty();
  };
  CHECK(is_warned(1h, 1h));
  CHECK_FALSE(is_warned(1h + 500us, 1h));  // by a client that has lost its server
  CHECK(is_warned(1h + 2ms, 1h));
  CHECK(is_warned(1h + 2ms, 2h));
}

TEST_CASE("a kill cancels the scopes of the pipe that are due after a time") {
  const testing::TempFolder folder;
  PipePage page(folder.path(), ::getpid(), {});
  SlotReading terms;
  terms.acquired = Instant::now();
  for (const auto& [name, left] : {std::pair("due", 1h), std::pair("later", 2h)}) {
    terms.deadline = terms.acquired + left;
    terms.asked = left;
    CHECK(page.acquire(name, std::string_view(name).size(), terms));
  }
  CHECK(page.cancel_all(terms.acquired + 1h) == std::vector<std::string>{"later"});
  CHECK(page.has_open("due"));
  CHECK(page.cancel_all() == std::vector<std::string>{"due"});
}

// The earlier server was killed while it wrote the slots: the verdict's is as it was before.
TEST_CASE("of a scope that is twice in the file of a worker of the pipe, the later one counts") {
  for (const bool is_later_lower : {true, false}) {
    CAPTURE(is_later_lower);
    const testing::TempFolder folder;
    const std::string file = folder.path(std::to_string(::getpid()));
    const Process worker = std::move(*open_process(::getpid()));
    PipePage page(folder.path(), worker.pid, {});
    const auto acquire = [&](std::string_view id, Duration left) {
      SlotReading terms;
      terms.acquired = Instant::now();
      terms.deadline = terms.acquired + left;
      terms.asked = left;
      CHECK(page.acquire(id, id.size(), terms));
    };
    acquire("first", 1h);
    acquire("twice", 1h);
    const auto open = page.open_slots();
    const auto judged = std::ranges::find(open, "twice", &SlotReading::id);
    REQUIRE(judged != open.end());
    REQUIRE(page.try_expire(1, judged->word));  // the second slot that was taken
    CHECK(page.save(worker, {}));
    const std::string before = testing::read_file(file);
    if (is_later_lower) {
      page.release("first");
    }
    acquire("twice", 2h);
    CHECK(page.save(worker, {}));
    std::string bytes = testing::read_file(file);
    constexpr std::size_t at = kSlotsAt + sizeof(Slot);
    bytes.replace(at, sizeof(Slot), before, at, sizeof(Slot));
    testing::write_file(file, bytes);
    const auto next = PipePage::adopt(folder.path(), worker.pid, {});
    REQUIRE(next);
    CHECK((*next)->has_open("twice"));
    CHECK((*next)->judged_slots().empty());
    CHECK((*next)->release("twice"));
    CHECK((*next)->open_slots().size() == (is_later_lower ? 0 : 1));
  }
}

TEST_CASE("of the open scopes of a worker those opened last are listed, and all are counted") {
  const testing::TempFolder folder;
  PipePage page(folder.path(), ::getpid(), {});
  SlotReading terms;
  for (const auto& [name, acquired] :
       {std::pair("c", 3), std::pair("a", 1), std::pair("d", 4), std::pair("b", 2)}) {
    terms.acquired = Instant{acquired};
    REQUIRE(page.acquire(name, 1, terms));
  }
  std::size_t count = 0;
  std::string names;
  for (const SlotReading& scope : page.open_slots(2, &count)) {
    names += scope.name;
  }
  CHECK(names == "cd");
  CHECK(count == 4);
}

TEST_CASE("a cancelled scope is in the file until the kill ends, or its slot is used again") {
  const testing::TempFolder folder;
  const Process worker = std::move(*open_process(::getpid()));
  PipePage page(folder.path(), worker.pid, {});
  const Instant begin = Instant::now();
  const auto acquire = [&](std::string_view id, Duration left) {
    SlotReading terms;
    terms.acquired = begin;
    terms.deadline = begin + left;
    terms.asked = left;
    REQUIRE(page.acquire(id, id.size(), terms));
  };
  const auto saved = [&] {
    REQUIRE(page.save(worker, {}));
    std::string text;
    for (const SlotReading& scope :
         (*PipePage::adopt(folder.path(), worker.pid, {}))->open_slots()) {
      text += scope.name + (scope.deadline == begin + 1h ? " 1h, " : " 2h, ");
    }
    return text;
  };
  acquire("a", 1h);
  acquire("b", 1h);
  CHECK(saved() == "a 1h, b 1h, ");
  CHECK(page.cancel_all().size() == 2);
  acquire("c", 2h);  // in the slot of "b"
  CHECK(saved() == "a 1h, c 2h, ");
  CHECK_FALSE(page.needs_save());
  page.end_cancelled();
  CHECK(page.needs_save());
  CHECK(saved() == "c 2h, ");
}

TEST_CASE("a worker with 2,048 slots whose kills are not over is refused a further scope") {
  const testing::TempFolder folder;
  PipePage page(folder.path(), ::getpid(), {});
  SlotReading terms;
  terms.deadline = Instant{1'000};
  for (std::size_t i = 0; i < 2 * kMaxScopesPerWorker; ++i) {
    const std::string id = std::to_string(i);
    REQUIRE(page.acquire(id, id.size(), terms));
    REQUIRE(page.try_expire(i, terms.deadline.ns));
    REQUIRE(page.release(id));
  }
  CHECK_FALSE(page.acquire("further", 7, terms));
  page.acknowledge_late_release(0);
  CHECK(page.acquire("further", 7, terms));
}
