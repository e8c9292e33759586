// Missed time: time in which the server could not run.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/clock.hpp"
#include "common/due.hpp"

namespace filetimer {

// Measures the time in which the server was stopped or starved, or the machine was paused. A
// deadline that passed in that time says nothing about its worker.
//
//   missed = missed_time.on_wake(clocks);                 // the loop wakes
//   ...                                                   // the loop works
//   missed_time.on_sleep(next, tolerated, Clocks::read()) // it sleeps until `next` at the latest
//
// The class reads no clock itself. Used on the loop thread.
class MissedTime {
 public:
  // Clocks that were read at the same time.
  struct Clocks {
    Instant now;
    Duration worked{};  // CPU time of the calling thread

    static Clocks read();
  };

  // Returns the time that was missed since the last call: the loop runs later than planned, or did
  // not run in the middle of its work. Returns zero if that is not longer than is tolerated.
  Duration on_wake(const Clocks& clocks);
  // Notes that the server sleeps until `planned` at the latest, and that it may wake by `tolerated`
  // later. The time since on_wake() in which the server used the processor is not missed time; the
  // rest of it is.
  void on_sleep(Instant planned, Duration tolerated, const Clocks& clocks);

 private:
  Clocks woke_;
  Instant planned_ = Instant::never();
  Duration tolerated_ = Looks::kMostTolerated;
  Duration away_{};  // of the last iteration: time in which the server did not run
};

}  // namespace filetimer
