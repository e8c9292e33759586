// Soft deadlines: never early, and exact to the nanosecond if the numbers allow it.
// SPDX-License-Identifier: MIT
#include "common/soft_deadline.hpp"

#include <doctest/doctest.h>

#include <random>

#include "common/limits.hpp"

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

TEST_CASE("a fraction of the timeout is met to the nanosecond") {
  CHECK(warn_at_word(0.5) == kHalf);
  CHECK(soft_time(kStarted, after(10s), 0, warn_at_word(0.5)) == after(5s));
  CHECK(soft_time(kStarted, after(10s), 0, warn_at_word(0.25)) == after(2500ms));
  CHECK(soft_time(kStarted, after(3ns), 0, kHalf) == after(2ns));  // rounded up
  CHECK(soft_time(kStarted, after(kMaxTimeout), 0, kHalf) == after(kMaxTimeout / 2));
}

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
  for (const double fraction : {0.1, 0.3, 0.7, 0.9, 1e-9, 0.999999999}) {
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
}

TEST_CASE("a scope without a deadline has no fraction, but may have a soft deadline of its own") {
  for (const std::int64_t due : {slot_word::kNoDeadline + 5, Instant::never().ns}) {
    CHECK(soft_time(kStarted, {due}, 0, kHalf).is_never());
    CHECK(soft_time(kStarted, {due}, 20, kHalf) == after(20ms));
  }
}

TEST_CASE("no value of a page makes a sum overflow") {
  constexpr Instant kLate{std::numeric_limits<std::int64_t>::max() - 1};
  CHECK(soft_time(kLate, {1}, 0, kHalf).is_never());
  CHECK(soft_time(kLate, {1}, 0xFFFF'FFFF, 0).is_never());
  CHECK(soft_time({0}, {slot_word::kNoDeadline - 1}, 0, 0xFFFF'FFFF) <
        Instant{slot_word::kNoDeadline - 1});
}
