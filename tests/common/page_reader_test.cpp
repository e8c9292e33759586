// Reading of valid, changing and hostile scope pages; and the words of a slot's deadline in every
// order in which the two sides can change them.
// SPDX-License-Identifier: MIT
#include "common/page_reader.hpp"

#include <doctest/doctest.h>

#include <thread>

#include "common/due.hpp"
#include "common/scope_page.hpp"
#include "common/wake_protocol.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/test_page.hpp"

namespace filetimer {
namespace {

using namespace slot_word;
constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

SlotReading read_one(TestPage& page, const TestScope& scope) {
  page.open(0, scope);
  const auto reading = read_slot(page.page(), 0, scope.word);
  REQUIRE(reading);
  return *reading;
}

// --- names of files ---

TEST_CASE("page names are letters, digits and dashes") {
  for (const char* name : {"4711", "4711-12345", "a", "Z9", "-"}) {
    CHECK(is_page_name(name));
  }
  CHECK(is_page_name(std::string(kMaxPageNameBytes, 'x')));
  for (const char* name : {"", ".", "..", ".4711", "a.b", "a/b", "a b", "a\n", "\xc3\xa9", "a_b"}) {
    CAPTURE(name);
    CHECK_FALSE(is_page_name(name));
  }
  CHECK_FALSE(is_page_name(std::string(kMaxPageNameBytes + 1, 'x')));
  CHECK_FALSE(is_page_name(std::string_view("a\0b", 3)));
}

// --- the header ---

TEST_CASE("texts of a header without an end or that are not UTF-8 are bounded and valid") {
  TestPage page;
  PageHeader& header = page.header();
  header.uid = 1000;
  header.created_ns = 42;
  page.set_rank(std::string(100, 'r'));
  page.set(header.comm, sizeof header.comm, "\xff\xfe");
  page.set(header.job_id, sizeof header.job_id, std::string(64, '\x80'));
  const auto claims = read_claims(page.page(), kPageBytes);
  REQUIRE(claims);
  CHECK(claims->uid == 1000);  // root's is 0, as one that was not read
  CHECK(claims->created_ns == 42);
  CHECK(claims->rank == std::string(32, 'r'));
  CHECK(claims->comm == "\\xff\\xfe");
  CHECK(claims->job_id.size() == 64 * 4);
  CHECK(claims->local_rank.empty());
}

TEST_CASE("a file that is not a page of this version is refused with the difference") {
  TestPage page;
  const auto refusal = [&] { return read_claims(page.page(), kPageBytes).error().message; };
  page.header().header_bytes = 1025;
  CHECK(refusal() == "its header has 1025 bytes: expected 1024");
  page.header().version = 99;
  CHECK(refusal() == "it is of version 99: expected 1");
  page.header().magic = 0x1234;
  CHECK(refusal() ==
        "it begins with 0x0000000000001234: expected the mark of a scope page, "
        "0x4547415052454d54");
}

TEST_CASE("counts of a header are cut to what a page has") {
  TestPage page;
  page.header().slots = 0xFFFF'FFFF;
  page.header().statistics = 0x8000'0000;
  CHECK(slots_in_use(page.page()) == kMaxScopesPerWorker);
  CHECK(statistics_in_use(page.page()) == kMaxStatistics);
}

// --- slots ---

TEST_CASE("a slot with a verdict keeps the deadline that it had") {
  TestPage page;
  CHECK(read_one(page, {.word = expired(1'500)}).deadline == Instant{1'500});
  CHECK(read_one(page, {.word = expired(kNoDeadline)}).deadline.is_never());
  const TestScope judged{.timeout = 500, .word = kJudged, .started = 1'000};
  CHECK(read_one(page, judged).deadline == Instant{1'500});
  const TestScope renewed{.acquired = 100, .timeout = 500, .word = expired(1'500)};
  CHECK(read_one(page, renewed).acquired == Instant{100});
  CHECK(read_one(page, {.timeout = kHighest, .word = kJudged}).deadline.is_never());
}

TEST_CASE("any values of a slot give times that can be subtracted") {
  TestPage page;
  for (const std::int64_t wild : {kLowest, kLowest + 1, std::int64_t{-1}, std::int64_t{0},
                                  kNoDeadline - 1, kNoDeadline, kHighest}) {
    for (const std::int64_t word : {wild, std::int64_t{1'500}}) {
      CAPTURE(wild);
      CAPTURE(word);
      const SlotReading reading = read_one(page, {.acquired = wild,
                                                  .timeout = wild,
                                                  .word = word,
                                                  .started = wild,
                                                  .tid = -5,
                                                  .signal = 0xFFFF,
                                                  .flags = 0xFFFF});
      for (const Instant time : {reading.deadline, reading.acquired, reading.started}) {
        CHECK(time.ns >= 0);
      }
      CHECK(reading.asked >= Duration::zero());
      CHECK(reading.tid == 0);
    }
  }
  for (const Duration timeout : {Duration::zero(), Duration{kMaxTimeout}}) {
    CHECK(read_one(page, {.timeout = timeout.count()}).asked == timeout);
  }
}

// --- scopes that have ended ---

// Writes an ended scope as a worker counts it.
void count_ended(SlotStatistics& entry, std::int64_t ended_ns, std::int64_t took_ns) {
  EndedScope& scope = entry.ended[entry.count % kEndedScopes];
  scope.ended = ended_ns;
  scope.took_ns = took_ns;
  entry.count = entry.count + 1;
}

TEST_CASE("the ended scopes of all threads are in the order in which they ended") {
  TestPage page;
  page.header().statistics = 3;
  for (const std::size_t thread : {0U, 1U}) {
    SlotStatistics& entry = page.page().statistics(thread);
    write_name(entry.name, "step");
    for (std::int64_t n = 0; n < 3; ++n) {
      count_ended(entry, 100 * n + 50 - 50 * static_cast<std::int64_t>(thread), 1);
    }
  }
  write_name(page.page().statistics(2).name, "never left");
  EndedScopesByName ended;
  add_ended_scopes(page.page(), ended);
  REQUIRE(ended.size() == 1);
  std::vector<std::int64_t> times;
  for (const EndedReading& scope : ended.at("step")) {
    times.push_back(scope.ended.ns);
  }
  CHECK(times == std::vector<std::int64_t>{0, 50, 100, 150, 200, 250});
}

TEST_CASE("the times of an ended scope are valid whatever the page says") {
  TestPage page;
  SlotStatistics& entry = page.page().statistics(0);
  for (const std::int64_t any : {kLowest, std::int64_t{-1}, std::int64_t{0}, kHighest}) {
    count_ended(entry, any, any);
  }
  std::vector<EndedReading> ended;
  read_ended_scopes(entry, ended);
  REQUIRE(ended.size() == 4);
  for (const EndedReading& scope : ended) {
    CHECK(scope.ended.ns >= 0);
    CHECK(scope.took >= Duration::zero());
  }
  entry.count = std::numeric_limits<std::uint64_t>::max();
  ended.clear();
  read_ended_scopes(entry, ended);
  CHECK(ended.size() == kEndedScopes - 1);
}

TEST_CASE("a copy of the ring has the scopes that were not overwritten while it was made") {
  constexpr std::uint64_t kHighestCount = std::numeric_limits<std::uint64_t>::max();
  const auto numbers = [](std::uint64_t before, std::uint64_t after) {
    const EndedNumbers found = ended_numbers_in_copy(before, after);
    return std::pair(found.begin, std::max(found.begin, found.end));
  };
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  CHECK(numbers(0, 0) == Range{0, 0});
  CHECK(numbers(3, 3) == Range{0, 3});
  CHECK(numbers(kEndedScopes, kEndedScopes) == Range{1, kEndedScopes});
  CHECK(numbers(100, 104) == Range{104 - (kEndedScopes - 1), 100});
  CHECK(numbers(100, 100 + kEndedScopes) == Range{101, 101});
  CHECK(numbers(kHighestCount, kHighestCount).second == kHighestCount);
  // A page may say anything, and no more than the ring is read.
  for (const std::uint64_t before : {std::uint64_t{1'000'000}, kHighestCount}) {
    for (const std::uint64_t after : {std::uint64_t{0}, std::uint64_t{3}, before - 1}) {
      CAPTURE(after);
      const Range range = numbers(before, after);
      CHECK(range.second == range.first);
    }
  }
}

TEST_CASE("names of every length are read back, and a longer one is cut") {
  TestPage page;
  SlotName& name = page.page().name(0);
  for (const std::size_t length : {1U, 7U, 8U, 15U, 16U, 247U, 248U, 254U, 255U}) {
    CAPTURE(length);
    std::string text;
    for (std::size_t i = 0; i < length; ++i) {
      text += static_cast<char>('a' + i % 26);
    }
    write_name(name, text);
    CHECK(read_name(name) == text);
  }
  write_name(name, "x");  // no byte of the longer name is left
  CHECK(read_name(name) == "x");
  write_name(name, "");
  CHECK(read_name(name) == "?");
  write_name(name, std::string(300, 'y'));
  CHECK(read_name(name) == std::string(255, 'y'));
  for (auto& word : name.words) {
    word = 0x4141'4141'4141'4141;  // a length of 65
  }
  CHECK(read_name(name) == std::string(65, 'A'));
}

// A scope with this number, so that any two of its fields show whether they belong together.
TestScope numbered_scope(std::int64_t number) {
  static const std::string names[] = {"the first of the names", std::string(200, '#')};
  return {.name = names[number % 2],
          .acquired = number,
          .timeout = number * 3,
          .word = number * 10,
          .started = number * 2,
          .tid = static_cast<std::int32_t>(number)};
}

TEST_CASE("while a slot is used again and again, no reading mixes two scopes") {
  TestPage page;
  page.open(0, numbered_scope(1));
  std::jthread worker([&](const std::stop_token& end) {
    Slot& slot = page.page().slot(0);
    for (std::int64_t number = 2; !end.stop_requested(); ++number) {
      const TestScope scope = numbered_scope(number);
      try_release(slot, numbered_scope(number - 1).word);
      begin_writing_slot();
      write_name(page.page().name(0), scope.name);
      slot.acquired.store(scope.acquired, std::memory_order_relaxed);
      slot.started.store(scope.started, std::memory_order_relaxed);
      slot.timeout.store(scope.timeout, std::memory_order_relaxed);
      slot.tid.store(scope.tid, std::memory_order_relaxed);
      set_deadline(slot, scope.word);
      for (int i = 0; i < 20; ++i) {
        Instant::now();  // held for about a microsecond
      }
    }
  });
  int whole = 0;
  int mixed = 0;
  // On a busy machine the worker may be suspended inside a scope during all of these rounds.
  const Instant until = Instant::now() + testing::kBound;
  for (int i = 0; i < 100'000 || (whole == 0 && Instant::now() < until); ++i) {
    const std::int64_t word = read_deadline(page.page().slot(0));
    const auto reading = is_open(word) ? read_slot(page.page(), 0, word) : std::nullopt;
    if (reading) {
      const TestScope scope = numbered_scope(word / 10);
      const bool fits = reading->name == scope.name && reading->acquired.ns == scope.acquired &&
                        reading->started.ns == scope.started &&
                        reading->asked.count() == scope.timeout && reading->tid == scope.tid;
      ++(fits ? whole : mixed);
    }
  }
  worker.request_stop();
  worker.join();
  CHECK(mixed == 0);
  CHECK(whole > 0);
}

TEST_CASE("a server's limit makes a deadline earlier and never later") {
  TestPage page;
  page.open(0, {.timeout = 500, .word = 1'500, .started = 1'000});
  Slot& slot = page.page().slot(0);
  CHECK(due_time(slot, 1'500, kForever) == Instant{1'500});
  CHECK(due_time(slot, 1'500, Duration{499}) == Instant{1'499});
  CHECK(due_time(slot, 1'500, Duration{501}) == Instant{1'500});
  CHECK(due_time(slot, kNoDeadline, kForever).is_never());
  CHECK(due_time(slot, kNoDeadline, Duration{7}) == Instant{1'007});
  CHECK(due_time(slot, kHighest, kForever).is_never());
  page.open(0, {.started = kLowest});
  CHECK(due_time(page.page().slot(0), 1'500, Duration{7}) == Instant{7});
  page.open(0, {.started = kHighest - 3});
  CHECK(due_time(page.page().slot(0), 1'500, Duration{7}) == Instant{1'500});
}

TEST_CASE("a soft deadline is read from the slot, whatever its time of start is") {
  TestPage page;
  page.open(0, {.word = 3'000'000, .started = 1'000, .soft_ms = 2});
  page.open(1, {.word = 3'000, .started = 1'000});
  page.open(2, {.word = 3'000, .started = kLowest});
  page.open(3, {.word = 3'000, .started = kHighest});
  const auto soft = [&](std::size_t index, Instant due, std::uint32_t warn_at) {
    return soft_time_of(page.page().slot(index), due.ns, due, warn_at);
  };
  CHECK(soft(0, {3'000'000}, 1U << 31) == Instant{2'001'000});
  CHECK(read_slot(page.page(), 0, 3'000'000)->soft_ms == 2);
  CHECK(soft(1, {3'000}, 1U << 31) == Instant{2'000});
  CHECK(soft(1, {3'000}, 0).is_never());
  CHECK(soft(2, {3'000}, 1U << 31) == Instant{1'500});  // times before the boot count as 0
  CHECK(soft(3, {3'000}, 1U << 31).is_never());
}

// --- the words of a deadline ---

TEST_CASE("each word of a slot has one meaning") {
  struct Row {
    std::int64_t word;
    bool open;
    bool is_expired;
  };
  for (const Row& row : {Row{kFree, false, false}, Row{1, true, false},
                         Row{kNoDeadline, true, false}, Row{kHighest, true, false},
                         Row{expired(1), false, true}, Row{expired(kNoDeadline), false, true},
                         Row{kJudged, false, false}, Row{kReleasedLate, false, false}}) {
    CAPTURE(row.word);
    CHECK(is_open(row.word) == row.open);
    CHECK(is_expired(row.word) == row.is_expired);
  }
  CHECK(expired(kNoDeadline) > kReleasedLate);
}

}  // namespace
}  // namespace filetimer
