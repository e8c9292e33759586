// Paused scopes and idle timeouts on the page.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filetimer/timer_client.hpp>
#include <thread>

#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using namespace filetimer::testing;

namespace {

SlotReading called(const FakeServer& server, const std::string& name) {
  return slot_called(server.page(), name);
}

}  // namespace

TEST_CASE("the server is woken for a pause that --max-timeout ends before its next reading") {
  FakeServer server;
  auto client = server.connect();
  const std::string page = server.pipe().next().x_page;
  auto scope = client.expires(30s, "step");
  server.looks_in(1h);
  CHECK(scope.pause());
  CHECK(server.pipe().is_silent());
  CHECK(scope.resume());
  CHECK(server.pipe().next().x_page == page);
  server.board().max_timeout = Duration{10s}.count();
  CHECK(scope.pause());
  CHECK(server.pipe().next().x_page == page);
}

TEST_CASE("a paused region suspends the scopes that its thread has open or opens, and no others") {
  FakeServer server;
  auto client = server.connect();
  const auto is_paused = [&](const std::string& name) {
    return slot_word::is_paused(called(server, name).word);
  };
  auto outer = client.expires(30s, "outer");
  auto held = client.expires(30s, "held");
  CHECK(held.pause());
  const TimerId elsewhere = [&] {
    TimerId timer;
    std::thread([&] { timer = client.acquire(30s, "elsewhere"); }).join();
    return timer;
  }();
  {
    const auto region = client.paused("checkpoint");
    CHECK(called(server, "checkpoint").deadline.is_never());
    CHECK(is_paused("outer"));
    CHECK_FALSE(is_paused("elsewhere"));
    auto inner = client.expires(20s, "inner");
    CHECK(is_paused("inner"));
    CHECK(called(server, "inner").left == 20s);
    CHECK(called(server, "inner").asked == 20s);
    {
      const auto nested = client.paused();
      CHECK(is_paused("inner"));
    }
    CHECK(is_paused("inner"));
    auto brief = client.expires(10s, "brief");
    CHECK(brief.release());
    CHECK(inner.resume());  // the region still pauses it
    CHECK(is_paused("inner"));
    CHECK(outer.pause());
    CHECK(inner.renew(1min));
    CHECK(called(server, "inner").left == 1min);
    CHECK(inner.release());
  }
  CHECK(is_paused("outer"));  // now only by its caller
  CHECK(is_paused("held"));
  CHECK(outer.resume());
  CHECK_FALSE(is_paused("outer"));
  CHECK(client.release(elsewhere));
  auto after = client.expires(30s, "after");
  CHECK_FALSE(is_paused("after"));
}

TEST_CASE("scopes that are paused, renewed and released by two threads at once are never lost") {
  FakeServer server;
  auto client = server.connect();
  std::atomic<bool> stop{false};
  const TimerId timer = client.acquire(1h, "shared");
  std::thread other([&] {
    while (!stop.load()) {
      const auto region = client.paused("region");
      client.pause(timer);
      client.resume(timer);
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    CHECK(client.renew(timer, 1h));
    auto scope = client.expires(1h, "own");
    CHECK(scope.renew(2h));
    CHECK(scope.release());
  }
  stop = true;
  other.join();
  CHECK(client.resume(timer));
  CHECK_FALSE(slot_word::is_paused(called(server, "shared").word));
  CHECK(client.release(timer));
  CHECK(slots_of(server.page()).empty());
}
