// SPDX-License-Identifier: MIT
#include "common/clock.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// 2026-11-21, one day after the boot.
constexpr std::int64_t kWallSeconds = 1'795'223'987;
constexpr ClockReading kNow{kWallSeconds * kSecond, Instant{86'400 * kSecond}};

}  // namespace

TEST_CASE("a deadline on the wire keeps its distance from now") {
  CHECK(monotonic_from_unix(kWallSeconds, kNow) == kNow.mono);
  CHECK(monotonic_from_unix(kWallSeconds + 30.0, kNow) == kNow.mono + 30s);
  CHECK(monotonic_from_unix(kWallSeconds - 30.0, kNow) == kNow.mono + -30s);
  CHECK(monotonic_from_unix(kWallSeconds + 0.5, kNow) == kNow.mono + 500ms);
}

TEST_CASE("a deadline on the wire is exact to the nanosecond that its double can hold") {
  // At 1.8e9 s doubles are 2^-22 s (238.4 ns) apart; 238.4 rounds up to 239.
  for (int step = 0; step < 4096; ++step) {
    const double unix_seconds = 1.8e9 + std::ldexp(step, -22);
    const ClockReading now{1'800'000'000 * kSecond, Instant{5 * kSecond}};
    // step * 1e9 / 2^22 in integers, rounded up.
    const std::int64_t expected = (step * kSecond + (1 << 22) - 1) >> 22;
    CHECK(monotonic_from_unix(unix_seconds, now) == now.mono + Duration{expected});
  }
}

TEST_CASE("a deadline on the wire is rounded up, so that no worker is killed early") {
  const double next = std::nextafter(double{kWallSeconds}, HUGE_VAL);
  const Instant deadline = monotonic_from_unix(next, kNow);
  CHECK(deadline == kNow.mono + 239ns);
  // Small numbers have finer fractions than a nanosecond.
  const ClockReading epoch{0, Instant{kSecond}};
  CHECK(monotonic_from_unix(1e-12, epoch) == epoch.mono + 1ns);
}

TEST_CASE("a wall clock with odd nanoseconds is carried over") {
  const ClockReading now{kNow.wall_ns + 123'456'789, kNow.mono};
  CHECK(monotonic_from_unix(kWallSeconds + 1.0, now) == now.mono + Duration{876'543'211});
}

TEST_CASE("an infinite or absurdly late deadline never comes") {
  for (const double late : {HUGE_VAL, 9.0e9, 1e18, 1e300, std::numeric_limits<double>::max()}) {
    CAPTURE(late);
    CHECK(monotonic_from_unix(late, kNow).is_never());
  }
  CHECK_FALSE(monotonic_from_unix(8.9e9, kNow).is_never());
}

TEST_CASE("zero, minus zero and tiny deadlines are long past") {
  for (const double past : {0.0, -0.0, 1e-300, 1.0}) {
    CAPTURE(past);
    CHECK(monotonic_from_unix(past, kNow) < kNow.mono + -24h);
  }
}

TEST_CASE("a clock step after the arrival of a deadline does not move it") {
  const Instant deadline = monotonic_from_unix(kWallSeconds + 60.0, kNow);
  // The wall clock is set an hour forward, one second later: a deadline that arrives now is
  // converted by the new clock, and the earlier one does not change.
  const ClockReading stepped{kNow.wall_ns + 3601 * kSecond, kNow.mono + 1s};
  CHECK(deadline == kNow.mono + 60s);
  CHECK(deadline > stepped.mono);
  CHECK(monotonic_from_unix(kWallSeconds + 3601.0 + 60.0, stepped) == stepped.mono + 60s);
}

TEST_CASE("adding to an instant saturates at never") {
  CHECK((Instant{1} + kForever).is_never());
  CHECK((Instant::never() + -1h).is_never());
  CHECK((Instant{std::numeric_limits<std::int64_t>::max() - 1} + 2ns).is_never());
  CHECK(Instant{1} + 2ns == Instant{3});
  CHECK(Instant{5} - Instant{3} == 2ns);
  CHECK(Instant::now() < Instant::never());
}

TEST_CASE("the monotonic clock does not go back and the wall clock is read first") {
  const Instant before = Instant::now();
  const ClockReading reading = ClockReading::now();
  CHECK(before <= reading.mono);
  CHECK(reading.mono <= Instant::now());
  CHECK(reading.wall_ns > 1'700'000'000 * kSecond);
}

TEST_CASE("a time in a record is RFC 3339 with microseconds, cut and not rounded") {
  CHECK(rfc3339(0) == "1970-01-01T00:00:00.000000Z");
  CHECK(rfc3339(kWallSeconds * kSecond + 410'000'999) == "2026-11-21T01:19:47.410000Z");
  CHECK(rfc3339(kWallSeconds * kSecond + 999'999'999) == "2026-11-21T01:19:47.999999Z");
  CHECK(rfc3339(-1) == "1969-12-31T23:59:59.999999Z");
  CHECK(rfc3339(1'709'164'800 * kSecond) == "2024-02-29T00:00:00.000000Z");
}
