// SPDX-License-Identifier: MIT
#include "timer_server/scopes/worker_page.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/support/files.hpp"
#include "timer_server/scopes/pipe_page.hpp"

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

  explicit OneSlot(Instant at) {
    slot_.acquired = at.ns;
    slot_.timeout = kTimeout.count();
    renew(at);
  }
  void renew(Instant at) {
    slot_.started = at.ns;
    slot_.flags = 0;
    slot_.deadline = (at + kTimeout).ns;
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
    const LostTime none;
    Found found;
    Activity activity;
    const Instant next =
        scan({.now = now, .terms = {}, .server = none, .worker = worker}, found, activity);
    return found.due.empty() ? next : found.due.front().deadline;
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
    CHECK(is(page.due(at(140s), worker), at(180s)));
  }
}

TEST_CASE("of the scopes of the pipe those are cancelled that are not due by then") {
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
