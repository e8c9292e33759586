// SPDX-License-Identifier: MIT
#include "timer_server/watch/missed_time.hpp"

#include <time.h>

#include <algorithm>

namespace filetimer {

MissedTime::Clocks MissedTime::Clocks::read() {
  timespec worked{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return {Instant::now(),
          std::chrono::seconds{worked.tv_sec} + std::chrono::nanoseconds{worked.tv_nsec}};
}

Duration MissedTime::on_wake(const Clocks& clocks) {
  const Duration late = away_ + std::max(clocks.now - planned_, Duration::zero());
  away_ = {};
  planned_ = Instant::never();
  woke_ = clocks;
  return late > tolerated_ ? late : Duration::zero();
}

void MissedTime::on_sleep(Instant planned, Duration tolerated, const Clocks& clocks) {
  planned_ = std::max(planned, clocks.now);
  tolerated_ = tolerated;
  const Duration away = (clocks.now - woke_.now) - (clocks.worked - woke_.worked);
  away_ = away > tolerated ? away : Duration::zero();
}

}  // namespace filetimer
