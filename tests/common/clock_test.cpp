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

TEST_CASE("a deadline on the wire keeps its distance from now, and is rounded up") {
  const ClockReading odd{kNow.wall_ns + 123'456'789, kNow.mono};
  const ClockReading epoch{0, Instant{kSecond}};
  // One second later, after the wall clock was set an hour forward.
  const ClockReading stepped{kNow.wall_ns + 3601 * kSecond, kNow.mono + 1s};
  struct Row {
    double unix_seconds;
    ClockReading now;
    Duration left;
  };
  for (const Row& row :
       {Row{kWallSeconds, kNow, 0s}, Row{kWallSeconds + 30.0, kNow, 30s},
        Row{kWallSeconds - 30.0, kNow, -30s}, Row{kWallSeconds + 0.5, kNow, 500ms},
        Row{kWallSeconds + 1.0, odd, 876'543'211ns}, Row{kWallSeconds + 3661.0, stepped, 60s},
        // No worker is killed early. Small numbers have finer fractions than a nanosecond.
        Row{std::nextafter(double{kWallSeconds}, HUGE_VAL), kNow, 239ns}, Row{1e-12, epoch, 1ns}}) {
    CAPTURE(row.unix_seconds);
    CHECK(monotonic_from_unix(row.unix_seconds, row.now) == row.now.mono + row.left);
  }
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

TEST_CASE(
    "an infinite or absurdly late deadline never comes, and zero or a tiny one is long past") {
  for (const double late : {HUGE_VAL, 9.0e9, 1e18, 1e300, std::numeric_limits<double>::max()}) {
    CAPTURE(late);
    CHECK(monotonic_from_unix(late, kNow).is_never());
  }
  CHECK_FALSE(monotonic_from_unix(8.9e9, kNow).is_never());
  for (const double past : {0.0, -0.0, 1e-300, 1.0}) {
    CAPTURE(past);
    CHECK(monotonic_from_unix(past, kNow) < kNow.mono + -24h);
  }
}

TEST_CASE("adding to an instant saturates at never") {
  CHECK((Instant{1} + kForever).is_never());
  CHECK((Instant::never() + -1h).is_never());
  CHECK((Instant{std::numeric_limits<std::int64_t>::max() - 1} + 2ns).is_never());
  CHECK(Instant{1} + 2ns == Instant{3});
  CHECK(Instant{5} - Instant{3} == 2ns);
  CHECK(Instant::now() < Instant::never());
}

TEST_CASE("a time in a record is RFC 3339 with microseconds, cut and not rounded") {
  CHECK(rfc3339(0) == "1970-01-01T00:00:00.000000Z");
  CHECK(rfc3339(kWallSeconds * kSecond + 410'000'999) == "2026-11-21T01:19:47.410000Z");
  CHECK(rfc3339(kWallSeconds * kSecond + 999'999'999) == "2026-11-21T01:19:47.999999Z");
  CHECK(rfc3339(-1) == "1969-12-31T23:59:59.999999Z");
  CHECK(rfc3339(1'709'164'800 * kSecond) == "2024-02-29T00:00:00.000000Z");
}
