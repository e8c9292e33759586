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

Instant now() {
  return Instant::now();
}

SlotReading called(const FakeServer& server, const std::string& name) {
  return slot_called(server.page(), name);
}

// Returns the word of the only idle timeout; kFree: none.
std::int64_t idle_word(const FakeServer& server) {
  for (const auto& [index, slot] : slots_of(server.page())) {
    if (slot.name == "(idle)") {
      return slot.word;
    }
  }
  return slot_word::kFree;
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

TEST_CASE("an idle timeout is a slot without a scope, and the times of releases are noted") {
  FakeServer server;
  server.board().max_timeout = 0;
  for (const bool statistics : {false, true}) {
    CAPTURE(statistics);
    ConnectOptions options = server.options();
    options.statistics = statistics;
    options.idle_timeout = 5s;
    auto client = TimerClient::connect(std::move(options));
    CHECK(idle_word(server) == slot_word::kIdleWatch);
    auto scope = client.expires(30s, "step");
    Slot& slot = server.page().slot(index_of(server.page(), "step"));
    const Instant before = now();
    CHECK(scope.release());
    CHECK(slot.deadline == slot_word::kFree);
    CHECK(Instant{slot.left} >= before);
    CHECK(Instant{slot.left} <= now());
    const TimerId timer = client.acquire(30s, "step");
    CHECK(client.pause(timer));
    const Instant again = now();
    CHECK(client.release(timer));
    CHECK(Instant{slot.left} >= again);
  }
  CHECK(idle_word(server) == slot_word::kFree);  // with its client
  ConnectOptions options = server.options();
  options.idle_timeout = -1s;
  CHECK_THROWS_AS(TimerClient::connect(std::move(options)), InvalidArgument);
}

TEST_CASE("the first scope of a name may take longer, and the first of the next process again") {
  FakeServer server;
  auto client = server.connect();
  const ScopeOptions options{.first_timeout = 10min};
  for (const std::string name : {"compile", "other"}) {
    CAPTURE(name);
    {
      auto first = client.expires(30s, name, options);
      CHECK(called(server, name).asked == 10min);
    }
    auto second = client.expires(30s, name, options);
    CHECK(called(server, name).asked == 30s);
  }
  client.acquire(30s, "acquired", options);
  CHECK(called(server, "acquired").asked == 10min);
  const pid_t child = ::fork();
  if (child == 0) {
    auto first = client.expires(30s, "compile", options);
    const auto times = first.times();
    ::_exit(times && times->remaining > 9min ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_THROWS_AS((void)client.expires(30s, "compile", {.first_timeout = 0s}), InvalidArgument);
}
