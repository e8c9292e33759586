// Whether the server itself missed time in which it should have run: it was stopped or starved, or
// the machine was suspended or paused with all that is on it. Then a deadline that has passed says
// nothing of its worker. No clock is read here. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>

#include "common/clock.hpp"

namespace filetimer {

class Oversleep {
 public:
  // Later than planned by less than this is what a busy machine does.
  static constexpr Duration kTolerated = std::chrono::seconds{1};

  // Read together, and so that nothing came in between.
  struct Clocks {
    Instant now;
    Duration asleep{};  // of the machine since boot: CLOCK_BOOTTIME counts it, `now` does not
    Duration worked{};  // CPU time of this thread

    static Clocks read();
  };

  struct Lateness {
    Duration late{};       // behind the plan, or away in the middle of its work
    Duration suspended{};  // asleep with the whole machine
    [[nodiscard]] Duration total() const { return late + suspended; }
  };
  // The server woke. Gives what was missed since the last time when that is more than kTolerated.
  std::optional<Lateness> wake(const Clocks& clocks);
  // It goes to sleep, until `planned` at the latest. The work that it did since it woke is no
  // lateness; time in which it was neither asleep nor at work is.
  void sleep(Instant planned, const Clocks& clocks);

 private:
  Clocks woke_;
  Instant planned_ = Instant::never();
  Duration away_{};
  std::optional<Duration> asleep_so_far_;
};

}  // namespace filetimer
