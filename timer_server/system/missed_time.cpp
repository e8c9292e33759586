// SPDX-License-Identifier: MIT
#include "timer_server/system/missed_time.hpp"

#include <time.h>

#include <algorithm>

namespace filetimer {
namespace {

Instant read_clock(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return {now.tv_sec * 1'000'000'000 + now.tv_nsec};
}

}  // namespace

MissedTime::Clocks MissedTime::Clocks::read() {
  // The clocks are read again if reading them took long: a stop of the server between two readings
  // would look like a suspend. CLOCK_BOOTTIME counts a suspend, CLOCK_MONOTONIC does not.
  constexpr Duration kTogether = std::chrono::milliseconds{10};
  constexpr int kTries = 100;
  Clocks clocks;
  for (int i = 0; i < kTries; ++i) {
    const Instant before = Instant::now();
    const Instant boottime = read_clock(CLOCK_BOOTTIME);
    clocks.worked = read_clock(CLOCK_THREAD_CPUTIME_ID) - Instant{};
    clocks.now = Instant::now();
    clocks.asleep = boottime - clocks.now;
    if (clocks.now - before < kTogether) {
      break;
    }
  }
  return clocks;
}

std::optional<MissedTime::Missed> MissedTime::on_wake(const Clocks& clocks) {
  Missed missed;
  missed.late = away_ + std::max(clocks.now - planned_, Duration::zero());
  away_ = {};
  planned_ = Instant::never();
  const Duration asleep_before = asleep_so_far_.value_or(clocks.asleep);
  missed.suspended = std::max(clocks.asleep - asleep_before, Duration::zero());
  asleep_so_far_ = clocks.asleep;
  woke_ = clocks;
  if (missed.late <= kTolerated) {
    missed.late = {};
  }
  if (missed.suspended <= kTolerated) {
    missed.suspended = {};
  }
  return missed.total() > Duration::zero() ? std::optional(missed) : std::nullopt;
}

void MissedTime::on_sleep(Instant planned, const Clocks& clocks) {
  planned_ = std::max(planned, clocks.now);
  const Duration away = (clocks.now - woke_.now) - (clocks.worked - woke_.worked);
  away_ = away > kTolerated ? away : Duration::zero();
}

}  // namespace filetimer
