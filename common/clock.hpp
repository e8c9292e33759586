// Time: CLOCK_MONOTONIC in nanoseconds. The wall clock is used on the version-1 wire and in records
// only, always together with the monotonic time at which it was read.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>

namespace filetimer {

using Duration = std::chrono::nanoseconds;
inline constexpr Duration kForever = Duration::max();

constexpr double in_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Returns infinity for kForever.
constexpr double seconds_or_infinity(Duration duration) {
  return duration == kForever ? std::numeric_limits<double>::infinity() : in_seconds(duration);
}

constexpr double in_milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// Returns the time on a clock of clock_gettime(2).
Duration read_clock(clockid_t clock);

// A point on CLOCK_MONOTONIC of this boot. Instant::never() is later than every other.
struct Instant {
  std::int64_t ns = 0;

  static constexpr Instant never() { return {std::numeric_limits<std::int64_t>::max()}; }
  static Instant now() { return {read_clock(CLOCK_MONOTONIC).count()}; }
  [[nodiscard]] constexpr bool is_never() const { return ns == never().ns; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Duration operator-(Instant a, Instant b) { return Duration{a.ns - b.ns}; }
  // Saturates at never(), so that an endless timeout needs no case of its own.
  friend constexpr Instant operator+(Instant a, Duration d) {
    std::int64_t sum = 0;
    if (a.is_never() || d == kForever || __builtin_add_overflow(a.ns, d.count(), &sum)) {
      return never();
    }
    return {sum};
  }
};

// Both clocks, read together. It converts a wall-clock deadline into a monotonic one.
struct ClockReading {
  std::int64_t wall_ns = 0;  // Unix time
  Instant mono;

  // Reads the wall clock first, so that time between the two reads makes a deadline later, never
  // earlier.
  static ClockReading now() {
    const std::int64_t wall_ns = read_clock(CLOCK_REALTIME).count();
    return {wall_ns, Instant::now()};
  }
  // Returns the wall clock less the monotonic one.
  [[nodiscard]] constexpr std::int64_t offset() const { return wall_ns - mono.ns; }
};

// Returns Unix seconds of the wire as monotonic time of this boot, rounded up to the next
// nanosecond. +inf becomes Instant::never(); a time long past becomes an instant before `now`.
Instant monotonic_from_unix(double unix_seconds, const ClockReading& now);

// Returns a text such as "2026-11-21T03:15:53.123456Z" (RFC 3339, UTC, microseconds).
std::string rfc3339(std::int64_t wall_ns);

// --- the boot and the pid namespace of this process. Times on CLOCK_MONOTONIC can be compared
// within one boot only ---

// The kernel's random number of a boot; all zeroes: not known.
using BootId = std::array<std::uint8_t, 16>;

inline constexpr const char* kBootIdPath = "/proc/sys/kernel/random/boot_id";

// Returns the id of this boot, which does not change while a process runs.
BootId this_boot();
// Returns the id as kBootIdPath has it; "unknown" for all zeroes.
std::string boot_id_text(const BootId& boot);

// Returns the inode of this process's pid namespace, or 0 if /proc cannot be read.
std::uint64_t this_pid_namespace();

}  // namespace filetimer
