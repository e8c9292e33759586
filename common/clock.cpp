// SPDX-License-Identifier: MIT
#include "common/clock.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <cmath>
#include <string_view>

#include "common/proc_files.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

BootId read_boot() {
  BootId boot{};
  std::string digits = read_small_file(kBootIdPath).value_or("");
  std::erase(digits, '-');
  for (std::size_t i = 0; i < boot.size() && 2 * i < digits.size(); ++i) {
    boot[i] = number_from<std::uint8_t>(std::string_view(digits).substr(2 * i, 2), 16).value_or(0);
  }
  return boot;
}

// Read when the library is loaded: a child that is forked while another thread makes the static
// object would never return, because that thread is not in the child.
[[maybe_unused]] const BootId boot_at_load = this_boot();

}  // namespace

Duration read_clock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

Instant monotonic_from_unix(double unix_seconds, const ClockReading& now) {
  // Split before scaling: a double has Unix seconds to 0.24 us, and multiplying first would lose
  // more than that.
  constexpr double kFarSeconds = 9.0e9;  // year 2255; later nanoseconds would overflow
  if (unix_seconds >= kFarSeconds) {
    return Instant::never();
  }
  const double whole = std::floor(unix_seconds);
  const auto fraction_ns = static_cast<std::int64_t>(std::ceil((unix_seconds - whole) * 1e9));
  const std::int64_t unix_ns = static_cast<std::int64_t>(whole) * kNanosPerSecond + fraction_ns;
  return {now.mono.ns + (unix_ns - now.wall_ns)};
}

std::string rfc3339(std::int64_t wall_ns) {
  // Rounded first: the midnight before the earliest time does not fit into nanoseconds.
  const auto time = std::chrono::floor<std::chrono::microseconds>(
      std::chrono::sys_time<Duration>{Duration{wall_ns}});
  const auto midnight = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date{midnight};
  const std::chrono::hh_mm_ss clock{time - midnight};
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
                     clock.subseconds().count());
}

BootId this_boot() {
  static const BootId boot = read_boot();
  return boot;
}

std::string boot_id_text(const BootId& boot) {
  if (boot == BootId{}) {
    return "unknown";
  }
  std::string text = fmt::format("{:02x}", fmt::join(boot, ""));
  for (const std::size_t at : {8U, 13U, 18U, 23U}) {
    text.insert(at, 1, '-');
  }
  return text;
}

std::uint64_t this_pid_namespace() {
  struct stat st {};
  return ::stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

}  // namespace filetimer
