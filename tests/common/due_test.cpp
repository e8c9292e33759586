// When a scope is due and when it is warned about.
// SPDX-License-Identifier: MIT
#include "common/due.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <random>
#include <string>
#include <vector>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

__extension__ using Wide = unsigned __int128;

constexpr Instant kStarted{1'000};
constexpr std::uint32_t kHalf = 1U << 31;

Instant after(Duration d) {
  return kStarted + d;
}

}  // namespace

TEST_CASE("no fraction makes a warning early, or late by more than a share of 2^-32") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 10'000; ++i) {
    const auto span = static_cast<std::int64_t>(random() >> (2 + random() % 50)) + 1;
    const auto word = static_cast<std::uint32_t>(random() >> (32 + random() % 32)) | 1U;
    const std::int64_t part = part_of(span, word);
    const Wide exact = Wide(span) * word;  // in parts of 2^32
    CHECK((Wide(part) << 32) >= exact);
    CHECK((Wide(part) << 32) - exact < Wide(1) << 32);
    CHECK(part <= span);
  }
  for (const double fraction : {0.1, 0.3, 0.5, 0.7, 0.9, 1e-9, 0.999999999}) {
    const double word = warn_at_word(fraction);
    CHECK(word / 4294967296.0 >= fraction);
    CHECK((word - 1) / 4294967296.0 < fraction);
  }
  CHECK(warn_at_word(0.99999999999) == 0xFFFF'FFFF);  // below 1 it stays
}

TEST_CASE("a scope's own soft deadline is rounded up to a millisecond and has precedence") {
  CHECK(soft_ms(1ns) == 1);
  CHECK(soft_ms(1ms) == 1);
  CHECK(soft_ms(1500us) == 2);
  CHECK(soft_ms(kLongestSoft) == 0xFFFF'FFFF);
  CHECK(soft_time(kStarted, after(10s), 7, 0) == after(7ms));
  CHECK(soft_time(kStarted, after(10s), 7'000, kHalf) == after(7s));
  CHECK(soft_time(kStarted, after(10s), 3'000, kHalf) == after(3s));
}

TEST_CASE("there is no warning at the deadline or after it") {
  CHECK(soft_time(kStarted, after(10s), 0, 0).is_never());
  CHECK(soft_time(kStarted, after(10s), 10'000, 0).is_never());
  CHECK(soft_time(kStarted, after(10s), 11'000, kHalf).is_never());  // its own counts
  CHECK(soft_time(kStarted, after(1ns), 0, kHalf).is_never());
  // A scope without a deadline has no fraction, but may have a soft deadline of its own.
  for (const std::int64_t due : {slot_word::kNoDeadline + 5, Instant::never().ns}) {
    CHECK(soft_time(kStarted, {due}, 0, kHalf).is_never());
    CHECK(soft_time(kStarted, {due}, 20, kHalf) == after(20ms));
  }
  // No value of a page makes a sum overflow.
  constexpr Instant kLate{std::numeric_limits<std::int64_t>::max() - 1};
  CHECK(soft_time(kLate, {1}, 0, kHalf).is_never());
  CHECK(soft_time(kLate, {1}, 0xFFFF'FFFF, 0).is_never());
  CHECK(soft_time({0}, {slot_word::kNoDeadline - 1}, 0, 0xFFFF'FFFF) <
        Instant{slot_word::kNoDeadline - 1});
}

// --- lost time ---

namespace {

constexpr Instant at(Duration time) {
  return Instant{} + time;
}

// A scope of 10 s that began at 100 s.
constexpr ScopeSpan kScope{.started = {100'000'000'000}, .timeout = 10s};

struct Lost {
  Duration from;
  Duration until;
};

// What a deadline is that would be at 110 s if no time were lost.
struct Losses {
  std::string what;
  std::vector<Lost> server;
  std::vector<Lost> worker;
  Duration due;
};

LostTime lost_time(const std::vector<Lost>& times) {
  LostTime lost;
  for (const Lost& time : times) {
    lost.add(at(time.from), at(time.until));
  }
  return lost;
}

}  // namespace

TEST_CASE("of a time that is noted again only what is new counts") {
  LostTime lost = lost_time({{104s, 105s}, {101s, 108s}});
  CHECK(lost.add(at(102s), at(109s)) == 1s);
  CHECK(lost.add(at(109s), at(111s)) == 2s);
}

TEST_CASE("a deadline is later by the time that was lost since its scope began") {
  for (const Losses& row : std::vector<Losses>{
           {"nothing was lost", {}, {}, 110s},
           {"lost before the scope began", {{90s, 100s}}, {{95s, 99s}}, 110s},
           {"lost in the middle", {{102s, 105s}}, {}, 113s},
           {"the worker was halted in the middle", {}, {{102s, 105s}}, 113s},
           {"the scope began in that time", {{80s, 103s}}, {}, 113s},
           {"past the deadline: counted from the end", {{109s, 112s}}, {}, 115s},
           {"longer than the timeout: a full timeout", {{105s, 500s}}, {}, 510s},
           {"several times add up", {{101s, 103s}, {105s, 106s}}, {{107s, 108s}}, 114s},
           {"one right after the other", {{101s, 109s}, {109s, 117s}}, {}, 126s},
           {"noted twice", {{101s, 102s}, {101s, 102s}}, {}, 111s},
           {"noted again when it was longer", {{101s, 102s}, {101s, 103s}}, {}, 112s},
           {"the longer one of one look comes second", {{105s, 108s}, {101s, 108s}}, {}, 117s},
           {"a halt that a look has interrupted", {{104s, 105s}, {101s, 108s}}, {}, 117s},
           {"the shorter one of one look comes second", {{101s, 108s}, {104s, 108s}}, {}, 117s},
           {"around two others", {{101s, 102s}, {103s, 104s}, {101s, 105s}}, {}, 114s},
           {"each over the one before", {{104s, 105s}, {101s, 108s}, {102s, 109s}}, {}, 118s},
           {"each is at most the timeout", {{101s, 200s}, {205s, 300s}}, {}, 310s},
           {"short ones all count",
            {{101s, 102s}, {103s, 104s}, {105s, 106s}, {107s, 108s}, {109s, 110s}},
            {},
            115s},
           {"the server's count for four timeouts",
            {{101s, 200s}, {205s, 300s}, {305s, 400s}, {405s, 500s}, {505s, 600s}},
            {},
            510s},
           {"all of the worker's count",
            {},
            {{101s, 200s}, {205s, 300s}, {305s, 400s}, {405s, 500s}, {505s, 600s}},
            610s},
       }) {
    CAPTURE(row.what);
    CHECK(due_after_losses(at(110s), kScope, lost_time(row.server), lost_time(row.worker)) ==
          at(row.due));
  }
}

TEST_CASE("only a scope with a signal before SIGKILL is signalled first") {
  struct Row {
    std::uint16_t flags;
    std::uint16_t signal;
    std::uint32_t grace_ms;
    Duration grace;
  };
  for (const Row& row : std::vector<Row>{
           {slot_flag::kSignalFirst, SIGHUP, 250, 250ms},
           {slot_flag::kSignalFirst, SIGTERM, kServersGrace, 30s},
           {slot_flag::kSignalFirst | slot_flag::kResumed, SIGUSR1, 0, 0s},
           {slot_flag::kSignalFirst, SIGTERM, kNoSigkill, 0s},
           {slot_flag::kSignalFirst, SIGKILL, 250, 0s},
           {slot_flag::kSignalFirst, 0, 250, 0s},
           {slot_flag::kResumed, SIGTERM, 250, 0s},
       }) {
    Slot slot{};
    slot.flags.store(row.flags);
    slot.signal.store(row.signal);
    slot.grace_ms.store(row.grace_ms);
    CHECK(grace_before_due(slot, 30s) == row.grace);
  }
}

TEST_CASE("a scope without a deadline gets none from lost time, one without a timeout gets all") {
  const LostTime lost = lost_time({{105s, 500s}});
  CHECK(due_after_losses(Instant::never(), {.started = at(100s)}, lost, lost).is_never());
  CHECK(due_after_losses(at(110s), {.started = at(100s)}, lost, {}) == at(895s));
}

TEST_CASE(
    "a scope has a full timeout after the last loss, or what it had, however many there are") {
  LostTime lost;
  Instant before = at(110s);
  for (std::size_t i = 0; i < 3 * LostTime::kMaxTimes; ++i) {
    const Instant until = at(101s + static_cast<int>(i) * 3s);
    lost.add({until.ns - 1'000'000'000 * static_cast<int>(i % 3)}, until);
    const Instant now = lost.extended(at(110s), kScope);
    CHECK(now >= std::min(before, until + kScope.timeout));
    CHECK(lost.end() == until);
    before = now;
  }
}

TEST_CASE("no lost time is forgotten, however many there are") {
  LostTime lost;
  for (std::size_t i = 0; i <= LostTime::kMaxTimes; ++i) {
    const Instant from = at(101s + static_cast<int>(i) * 3s);
    lost.add(from, from + (i == 0 ? 2s : 1s));
  }
  CHECK(lost.extended(at(1100s), {.started = at(100s), .timeout = 1000s}) == at(1166s));
  // The two oldest are one of 3 s, from 101 s to 105 s.
  for (const auto started : {100'000ms, 103'500ms}) {
    CHECK(lost.extended(at(1100s), {.started = at(started), .timeout = 1000s}, kForever,
                        at(started == 100s ? 103'500ms : 106'000ms)) == at(1'101'500ms));
  }
}

TEST_CASE("a hung scope is due however much was lost before it began, and while times are lost") {
  LostTime lost;
  const ScopeSpan hung{.started = at(100'000s), .timeout = 7'200s};
  Instant now;
  while (now < at(200'000s) && (now < hung.started || now < lost.extended(at(107'200s), hung))) {
    lost.add(now, now + 6s);  // a tenth of the time
    now = now + 60s;
  }
  CHECK(now < at(108'200s));
}

TEST_CASE("what was lost from a moment on does not count") {
  const auto due = [](const Lost& time, Duration until) {
    return lost_time({time}).extended(at(110s), kScope, kForever, at(until));
  };
  CHECK(due({101s, 105s}, 103s) == at(112s));
  CHECK(due({120s, 125s}, 120s) == at(110s));
}

TEST_CASE("a scope without a deadline carries no lost time through a pause") {
  Slot slot{};
  slot.acquired.store(at(100s).ns);
  slot.started.store(at(100s).ns);
  slot.timeout.store(kForever.count());
  slot.left.store(kForever.count());
  slot.flags.store(slot_flag::kPausedByCaller);
  ScopeLosses losses;
  CHECK(losses
            .look(slot, slot_word::kPaused + at(110s).ns, kForever, lost_time({{102s, 105s}}), {},
                  at(111s))
            .carried == Duration::zero());
}

TEST_CASE("a scope began a timeout before its deadline, also while it is being renewed") {
  struct Row {
    Instant started;
    std::int64_t word;
    Duration timeout;
    Instant expected;
  };
  constexpr std::int64_t kEndless = slot_word::kNoDeadline + at(100s).ns;
  for (const Row& row :
       {Row{at(105s), at(110s).ns, 10s, at(100s)}, Row{at(3s), at(10s).ns, 10s, Instant{}},
        // A deadline that an earlier server had cut.
        Row{at(100s), at(110s).ns, kForever, at(100s)},
        Row{at(100s), kEndless, kForever, at(100s)}}) {
    CAPTURE(row.timeout.count());
    const ScopeSpan span = span_of(row.started, row.word, row.timeout);
    CHECK(span.started == row.expected);
    CHECK(span.timeout == row.timeout);
  }
}

TEST_CASE("the server looks so often that a pause between two looks takes a quarter of a timeout") {
  CHECK(looks_for(kForever).pause == kForever);
  CHECK(looks_for(kForever).tolerated == 1s);
  for (const Duration shortest : {1400ms, 2000ms, 4000ms, 7000ms, 30'000ms, 3'600'000ms}) {
    const Looks looks = looks_for(shortest);
    CAPTURE(shortest.count());
    CHECK(looks.pause + looks.tolerated == shortest / 4);
    CHECK(looks.pause > shortest / 20);
  }
  CHECK(looks_for(8s).tolerated == 500ms);
  for (const Duration shortest : {0ms, 1ms, 500ms, 1000ms}) {
    CHECK(looks_for(shortest).pause == 100ms);  // no more than ten times a second
    CHECK(looks_for(shortest).tolerated == 250ms);
  }
}

TEST_CASE("a scope that wakes no server is looked at within a quarter of its timeout") {
  const Instant now = at(50s);
  const Instant next = at(57s);
  const Instant before = wakes_before(now, next, 1s);
  CHECK(before == at(82s));
  for (const Duration opened : {50s, 53s, 57s}) {
    CHECK(4 * (next + 1s - at(opened)) <= before - at(opened));
  }
  CHECK(wakes_before(now, at(40s), 0s) == now);
  CHECK(wakes_before(now, Instant::never(), 1s).is_never());
}
