// SPDX-License-Identifier: MIT
#include "common/clock.hpp"

#include <fmt/format.h>
#include <time.h>

#include <cmath>

namespace filetimer {
namespace {

constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

std::int64_t read_clock(clockid_t id) {
  timespec ts{};
  ::clock_gettime(id, &ts);
  return ts.tv_sec * kNanosPerSecond + ts.tv_nsec;
}

}  // namespace

Instant Instant::now() {
  return {read_clock(CLOCK_MONOTONIC)};
}

ClockReading ClockReading::now() {
  const std::int64_t wall_ns = read_clock(CLOCK_REALTIME);
  return {wall_ns, Instant::now()};
}

Instant monotonic_from_unix(double unix_seconds, const ClockReading& now) {
  // Split before scaling: a double has Unix seconds to 0.24 us, and multiplying first would lose
  // more than that.
  constexpr double kFarSeconds = 9.0e9;  // year 2255; later nanoseconds would overflow
  if (unix_seconds >= kFarSeconds) {
    return Instant::never();
  }
  if (unix_seconds <= 0) {
    return {now.mono.ns - now.wall_ns};
  }
  const double whole = std::floor(unix_seconds);
  const auto fraction_ns = static_cast<std::int64_t>(std::ceil((unix_seconds - whole) * 1e9));
  const std::int64_t unix_ns = static_cast<std::int64_t>(whole) * kNanosPerSecond + fraction_ns;
  return {now.mono.ns + (unix_ns - now.wall_ns)};
}

std::string rfc3339(std::int64_t wall_ns) {
  std::int64_t seconds = wall_ns / kNanosPerSecond;
  std::int64_t nanos = wall_ns % kNanosPerSecond;
  if (nanos < 0) {
    nanos += kNanosPerSecond;
    --seconds;
  }
  const time_t t = seconds;
  tm parts{};
  ::gmtime_r(&t, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     nanos / 1000);
}

}  // namespace filetimer
