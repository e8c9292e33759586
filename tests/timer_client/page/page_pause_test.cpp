// Paused regions within each other, and pauses of two threads.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <atomic>
#include <filetimer/timer_client.hpp>
#include <memory>
#include <thread>

#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using namespace filetimer::testing;

TEST_CASE_FIXTURE(Connected,
                  "a region within a region pauses until the outer one ends, under its name") {
  const auto is_paused = [&] { return slot_word::is_paused(server.slot("step").word); };
  auto scope = client.expires(30s, "step");
  {
    const auto region = client.paused("checkpoint");
    CHECK(server.slot("checkpoint").deadline.is_never());
    {
      const auto nested = client.paused();
      CHECK(is_paused());
    }
    CHECK(is_paused());
    auto inner = client.expires(20s, "inner");
    CHECK(server.slot("inner").left == 20s);
    CHECK(server.slot("inner").asked == 20s);
  }
  CHECK_FALSE(is_paused());
}

TEST_CASE_FIXTURE(Connected, "a scope that is paused after its deadline keeps its timeout") {
  auto scope = client.expires(1h, "step");
  move_clock(2h);
  CHECK(scope.pause());
  CHECK(server.slot("step").left == 1ns);  // by which the server knows that it was late
  CHECK(scope.resume());
  const SlotReading slot = server.slot("step");
  CHECK(slot.deadline - slot.started == 1h);
}

TEST_CASE_FIXTURE(Connected, "the scopes of a thread that ends in a region go on") {
  TimerScope left;
  std::unique_ptr<PausedRegion> region;
  in_thread([&] {
    left = client.expires(1h, "left");
    region.reset(new PausedRegion(client.paused("region")));
    CHECK(slot_word::is_paused(server.slot("left").word));
    server.looks_in(2h);
  });
  CHECK((server.wakes() == 1 && !slot_word::is_paused(server.slot("left").word)));
  in_thread([&] {  // whose memory may be that of the thread that has ended
    const auto own = client.paused("own");
    const auto scope = client.expires(1h, "scope");
    region.reset();
    CHECK(slot_word::is_paused(server.slot("scope").word));
  });
  CHECK(left.release());
}

TEST_CASE_FIXTURE(Connected,
                  "a renewal keeps the flag of a region that begins in another thread meanwhile") {
  auto scope = client.expires(1h, "step");
  CHECK(scope.pause());
  CHECK(scope.resume());
  Slot& slot = server.page().slot(index_of(server.page(), "step"));
  slot.flags |= slot_flag::kSuspended;  // its first step, before that of the deadline
  CHECK(scope.renew(1h));
  CHECK(slot.flags == slot_flag::kSuspended);
}

TEST_CASE_FIXTURE(
    Connected,
    "scopes that are paused, renewed and released by two threads at once are never lost") {
  server.board().max_timeout = Duration{1h}.count();  // which counts from the renewal
  std::atomic<bool> is_open{false};
  TimerScope shared;  // of the other thread, whose regions pause it
  std::jthread other([&](const std::stop_token& end) {
    shared = client.expires(1h, "shared");
    is_open = true;
    is_open.notify_one();
    while (!end.stop_requested()) {
      const auto region = client.paused("region");
    }
  });
  is_open.wait(false);
  for (int i = 0; i < 20'000; ++i) {
    move_clock(2min);
    CHECK(shared.renew(1h));
    CHECK(shared.times()->remaining > 59min);
    CHECK(shared.pause());
    CHECK(shared.renew(2h));
    CHECK(shared.resume());
    auto scope = client.expires(1h, "own");
    CHECK(scope.renew(2h));
    CHECK(scope.release());
  }
  other.request_stop();
  other.join();
  CHECK(shared.resume());
  CHECK_FALSE(slot_word::is_paused(server.slot("shared").word));
  CHECK(shared.release());
  CHECK(server.slots().empty());
}
