// SPDX-License-Identifier: MIT
#include "timer_server/control/shutdown_requests.hpp"

#include <doctest/doctest.h>

using namespace filetimer;
using namespace std::chrono_literals;

TEST_CASE(
    "While a shutdown waits, its scopes are checked often and its client gets an answer seldom") {
  ShutdownRequests requests;
  CHECK(requests.next_look().is_never());
  const Instant begun{1'000};
  requests.add({.client = 1, .until = begun + 10s}, begun);
  CHECK(requests.is_due(begun));
  CHECK(requests.note_look(begun));
  CHECK(requests.next_look() == begun + ShutdownRequests::kLookPeriod);
  CHECK_FALSE(requests.note_look(begun + ShutdownRequests::kLookPeriod));
  CHECK(requests.note_look(begun + ShutdownRequests::kNewsPeriod));
  CHECK(requests.take_all().size() == 1);
  (void)requests.note_look(begun + 2s);
  CHECK(requests.next_look().is_never());
}

TEST_CASE("Requests whose time is up are taken, and the others stay") {
  ShutdownRequests requests;
  requests.add({.client = 1, .until = Instant{} + 1s}, {});
  requests.add({.client = 2, .until = Instant{} + 2s}, {});
  CHECK(requests.take_overdue({}).empty());
  const auto overdue = requests.take_overdue(Instant{} + 1s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue.front().client == 1);
  REQUIRE(requests.waiting().size() == 1);
  CHECK(requests.waiting().front().client == 2);
}

TEST_CASE("Requests of disconnected clients are merged into the strongest one") {
  ShutdownRequests requests;
  requests.add({.client = 1, .until = Instant{} + 1s, .waits_for_workers = true}, {});
  requests.add({.client = 2, .until = Instant{} + 3s, .is_forced_then = true}, {});
  requests.add({.client = 3, .until = Instant{} + 2s}, {});
  requests.withdraw(4);
  requests.withdraw(1);
  CHECK(requests.waiting().size() == 3);
  requests.withdraw(2);
  REQUIRE(requests.waiting().size() == 2);
  const auto& merged = requests.waiting().front();
  CHECK(merged.client == ShutdownRequests::kNoClient);
  CHECK(merged.until == Instant{} + 3s);
  CHECK(merged.is_forced_then);
  CHECK_FALSE(merged.waits_for_workers);
}

TEST_CASE("One request that does not wait for workers is enough to end the server") {
  ShutdownRequests requests;
  requests.add({.client = 1, .until = Instant::never(), .waits_for_workers = true}, {});
  CHECK(requests.all_wait_for_workers());
  requests.add({.client = 2, .until = Instant::never()}, {});
  CHECK_FALSE(requests.all_wait_for_workers());
}
