// SPDX-License-Identifier: MIT
#include "timer_server/system/missed_time.hpp"

#include <doctest/doctest.h>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// Clocks at `now`, with `asleep` of suspends and `worked` of CPU time.
constexpr MissedTime::Clocks at(Duration now, Duration asleep = 0s, Duration worked = 0s) {
  return {Instant{} + now, asleep, worked};
}
constexpr Instant plan(Duration time) {
  return Instant{} + time;
}

}  // namespace

TEST_CASE("A wake-up in time, or early for a request, misses no time") {
  MissedTime missed_time;
  CHECK_FALSE(missed_time.on_wake(at(0s)));
  missed_time.on_sleep(plan(10s), at(0s));
  CHECK_FALSE(missed_time.on_wake(at(3s)));
  missed_time.on_sleep(plan(10s), at(3s));
  CHECK_FALSE(missed_time.on_wake(at(10s)));
}

TEST_CASE("A wake-up more than a second late is missed time, reported once") {
  MissedTime missed_time;
  missed_time.on_wake(at(0s));
  missed_time.on_sleep(plan(10s), at(0s));
  CHECK_FALSE(missed_time.on_wake(at(11s)));  // a busy machine
  missed_time.on_sleep(plan(20s), at(11s));
  const auto missed = missed_time.on_wake(at(25s));
  REQUIRE(missed);
  CHECK(missed->late == 5s);
  CHECK(missed->suspended == 0s);
  CHECK_FALSE(missed_time.on_wake(at(25s)));
}

TEST_CASE("The server's own work is not missed time") {
  MissedTime missed_time;
  missed_time.on_wake(at(9s));
  // An iteration of six seconds of work, five of them after the planned time.
  missed_time.on_sleep(plan(10s), at(15s, 0s, 6s));
  CHECK_FALSE(missed_time.on_wake(at(15s, 0s, 6s)));
}

TEST_CASE("A stop in the middle of the server's work is missed time") {
  MissedTime missed_time;
  missed_time.on_wake(at(9s, 0s, 1s));
  missed_time.on_sleep(plan(10s), at(15s, 0s, 1500ms));
  const auto missed = missed_time.on_wake(at(15s, 0s, 1500ms));
  REQUIRE(missed);
  CHECK(missed->late == 5500ms);
  missed_time.on_sleep(plan(20s), at(15s, 0s, 1500ms));
  CHECK_FALSE(missed_time.on_wake(at(20s, 0s, 1500ms)));
}

TEST_CASE("A server without a planned time is never late") {
  MissedTime missed_time;
  missed_time.on_wake(at(0s));
  missed_time.on_sleep(Instant::never(), at(0s));
  CHECK_FALSE(missed_time.on_wake(at(3600s)));
}

TEST_CASE("A suspend is missed time, reported once") {
  MissedTime missed_time;
  CHECK_FALSE(missed_time.on_wake(at(1s, 99s)));  // suspended before the server began
  missed_time.on_sleep(plan(10s), at(1s, 99s));
  const auto missed = missed_time.on_wake(at(2s, 3699s));
  REQUIRE(missed);
  CHECK(missed->suspended == 3600s);
  CHECK(missed->late == 0s);
  CHECK(missed->total() == 3600s);
  missed_time.on_sleep(plan(10s), at(2s, 3699s));
  CHECK_FALSE(missed_time.on_wake(at(3s, 3699s)));
}

TEST_CASE("A clock that goes back is not a suspend") {
  MissedTime missed_time;
  missed_time.on_wake(at(1s, 99s));
  missed_time.on_sleep(plan(10s), at(1s, 99s));
  CHECK_FALSE(missed_time.on_wake(at(2s, 48s)));
}

TEST_CASE("The clocks advance together, and CPU time is counted") {
  const MissedTime::Clocks before = MissedTime::Clocks::read();
  MissedTime::Clocks after = before;
  while (after.worked - before.worked < 5ms) {
    after = MissedTime::Clocks::read();
  }
  CHECK(after.now - before.now >= after.worked - before.worked - 1ms);  // two clocks
  CHECK(std::chrono::abs(after.asleep - before.asleep) < 1s);
}
