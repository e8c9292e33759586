// SPDX-License-Identifier: MIT
#include "timer_server/watch/lost_time.hpp"

#include <doctest/doctest.h>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// Clocks at `now`, with `worked` of CPU time.
constexpr MissedTime::Clocks at(Duration now, Duration worked = 0s) {
  return {Instant{} + now, worked};
}
constexpr Instant plan(Duration time) {
  return Instant{} + time;
}

}  // namespace

TEST_CASE("A wake-up in time, or early for a request, misses no time") {
  MissedTime missed_time;
  CHECK(missed_time.on_wake(at(0s)) == 0s);
  missed_time.on_sleep(plan(10s), 1s, at(0s));
  CHECK(missed_time.on_wake(at(3s)) == 0s);
  missed_time.on_sleep(plan(10s), 1s, at(3s));
  CHECK(missed_time.on_wake(at(10s)) == 0s);
}

TEST_CASE("A wake-up that is later than is tolerated is missed time, reported once") {
  for (const Duration tolerated : {1000ms, 250ms}) {
    MissedTime missed_time;
    missed_time.on_wake(at(0s));
    missed_time.on_sleep(plan(10s), tolerated, at(0s));
    CHECK(missed_time.on_wake(at(10s + tolerated)) == 0s);  // a busy machine
    missed_time.on_sleep(plan(20s), tolerated, at(10s + tolerated));
    CHECK(missed_time.on_wake(at(20s + tolerated + 1ms)) == tolerated + 1ms);
    CHECK(missed_time.on_wake(at(25s)) == 0s);
  }
}

TEST_CASE("The server's own work is not missed time") {
  MissedTime missed_time;
  missed_time.on_wake(at(9s));
  // An iteration of six seconds of work, five of them after the planned time.
  missed_time.on_sleep(plan(10s), 1s, at(15s, 6s));
  CHECK(missed_time.on_wake(at(15s, 6s)) == 0s);
}

TEST_CASE("A stop in the middle of the server's work is missed time") {
  MissedTime missed_time;
  missed_time.on_wake(at(9s, 1s));
  missed_time.on_sleep(plan(10s), 1s, at(15s, 1500ms));
  CHECK(missed_time.on_wake(at(15s, 1500ms)) == 5500ms);
  missed_time.on_sleep(plan(20s), 1s, at(15s, 1500ms));
  CHECK(missed_time.on_wake(at(20s, 1500ms)) == 0s);
}

TEST_CASE("A server without a planned time is never late") {
  MissedTime missed_time;
  missed_time.on_wake(at(0s));
  missed_time.on_sleep(Instant::never(), 1s, at(0s));
  CHECK(missed_time.on_wake(at(3600s)) == 0s);
}

TEST_CASE("The clocks advance together, and CPU time is counted") {
  const MissedTime::Clocks before = MissedTime::Clocks::read();
  MissedTime::Clocks after = before;
  while (after.worked - before.worked < 5ms) {
    after = MissedTime::Clocks::read();
  }
  CHECK(after.now - before.now >= after.worked - before.worked - 1ms);  // two clocks
}
