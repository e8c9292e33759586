// Missed time: time in which the server could not run.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>

#include "common/clock.hpp"

namespace filetimer {

// Measures the time in which the server was stopped or starved, or the machine was suspended or
// paused. A deadline that passed in that time says nothing about its worker.
//
//   missed = missed_time.on_wake(clocks);      // the loop wakes
//   ...                                        // the loop works
//   missed_time.on_sleep(next, Clocks::read()) // the loop sleeps until `next` at the latest
//
// The class reads no clock itself. Used on the loop thread.
class MissedTime {
 public:
  // A busy machine runs the server this much later than planned, so that is not missed time.
  static constexpr Duration kTolerated = std::chrono::seconds{1};

  // Clocks that were read at the same time.
  struct Clocks {
    Instant now;
    Duration asleep{};  // how long the machine was suspended since boot
    Duration worked{};  // CPU time of the calling thread

    static Clocks read();
  };

  struct Missed {
    Duration late{};  // the server ran later than planned, or did not run in the middle of its work
    Duration suspended{};  // the machine was suspended
    [[nodiscard]] Duration total() const { return late + suspended; }
  };
  // Returns the time that was missed since the last call, without parts up to kTolerated. Returns
  // nothing if none was missed.
  std::optional<Missed> on_wake(const Clocks& clocks);
  // Notes that the server sleeps until `planned` at the latest. The time since on_wake() in which
  // the server used the processor is not missed time; the rest of it is.
  void on_sleep(Instant planned, const Clocks& clocks);

 private:
  Clocks woke_;
  Instant planned_ = Instant::never();
  Duration away_{};  // of the last iteration: time in which the server did not run
  std::optional<Duration> asleep_so_far_;
};

}  // namespace filetimer
