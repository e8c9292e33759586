// SPDX-License-Identifier: MIT
#include "timer_server/oversleep.hpp"

#include <doctest/doctest.h>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// At that time, the machine having been asleep for so long, and having worked for so long.
constexpr Oversleep::Clocks at(Duration now, Duration asleep = 0s, Duration worked = 0s) {
  return {Instant{} + now, asleep, worked};
}
constexpr Instant plan(Duration time) {
  return Instant{} + time;
}

}  // namespace

TEST_CASE("Waking in time, or early for a request, is no lateness") {
  Oversleep oversleep;
  CHECK_FALSE(oversleep.wake(at(0s)));
  oversleep.sleep(plan(10s), at(0s));
  CHECK_FALSE(oversleep.wake(at(3s)));
  oversleep.sleep(plan(10s), at(3s));
  CHECK_FALSE(oversleep.wake(at(10s)));
}

TEST_CASE("More than a second behind the plan is lateness, told once") {
  Oversleep oversleep;
  oversleep.wake(at(0s));
  oversleep.sleep(plan(10s), at(0s));
  CHECK_FALSE(oversleep.wake(at(11s)));  // busy, not absent
  oversleep.sleep(plan(20s), at(11s));
  const auto missed = oversleep.wake(at(25s));
  REQUIRE(missed);
  CHECK(missed->late == 5s);
  CHECK(missed->suspended == 0s);
  CHECK_FALSE(oversleep.wake(at(25s)));
}

TEST_CASE("The server's own work is no lateness") {
  Oversleep oversleep;
  oversleep.wake(at(9s));
  // A turn of six seconds of work, five of them after something was due.
  oversleep.sleep(plan(10s), at(15s, 0s, 6s));
  CHECK_FALSE(oversleep.wake(at(15s, 0s, 6s)));
}

TEST_CASE("A server that was stopped in the middle of its work was away") {
  Oversleep oversleep;
  oversleep.wake(at(9s, 0s, 1s));
  oversleep.sleep(plan(10s), at(15s, 0s, 1500ms));
  const auto missed = oversleep.wake(at(15s, 0s, 1500ms));
  REQUIRE(missed);
  CHECK(missed->late == 5500ms);
  oversleep.sleep(plan(20s), at(15s, 0s, 1500ms));
  CHECK_FALSE(oversleep.wake(at(20s, 0s, 1500ms)));
}

TEST_CASE("A server that has nothing to wake for is never late") {
  Oversleep oversleep;
  oversleep.wake(at(0s));
  oversleep.sleep(Instant::never(), at(0s));
  CHECK_FALSE(oversleep.wake(at(3600s)));
}

TEST_CASE("A suspend is seen by the clock that goes on in it, and told once") {
  Oversleep oversleep;
  CHECK_FALSE(oversleep.wake(at(1s, 99s)));  // suspended before the server began
  oversleep.sleep(plan(10s), at(1s, 99s));
  const auto missed = oversleep.wake(at(2s, 3699s));
  REQUIRE(missed);
  CHECK(missed->suspended == 3600s);
  CHECK(missed->late == 0s);
  CHECK(missed->total() == 3600s);
  oversleep.sleep(plan(10s), at(2s, 3699s));
  CHECK_FALSE(oversleep.wake(at(3s, 3699s)));
}

TEST_CASE("A clock that goes back is not a suspend") {
  Oversleep oversleep;
  oversleep.wake(at(1s, 99s));
  oversleep.sleep(plan(10s), at(1s, 99s));
  CHECK_FALSE(oversleep.wake(at(2s, 48s)));
}

TEST_CASE("The clocks go on together, and work is counted") {
  const Oversleep::Clocks before = Oversleep::Clocks::read();
  Oversleep::Clocks after = before;
  while (after.worked - before.worked < 5ms) {
    after = Oversleep::Clocks::read();
  }
  CHECK(after.now - before.now >= after.worked - before.worked - 1ms);  // two clocks
  CHECK(std::chrono::abs(after.asleep - before.asleep) < 1s);
}
