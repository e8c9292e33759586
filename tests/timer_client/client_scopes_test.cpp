// The behaviour of a client's scopes, as seen through the server.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <filetimer/timer_client.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/limits.hpp"
#include "common/sanitizers.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::contains;
using testing::message_of;

namespace {

using Timers = std::multiset<std::pair<std::string, Duration>>;  // names and timeouts

struct WatchedClient : testing::Connected {
  // Returns the open timers of this process.
  [[nodiscard]] Timers open() const {
    Timers timers;
    for (const auto& [index, slot] : server.slots()) {
      if (slot_word::is_open(slot.word)) {
        timers.emplace(slot.name, slot.asked);
      }
    }
    return timers;
  }
};

}  // namespace

TEST_CASE_FIXTURE(WatchedClient,
                  "a client ends the job's scope at its end, and other open scopes stay watched") {
  auto other = server.connect();
  client.start(1h);
  other.start(30s);
  auto scope = client.expires(30s, "scope");
  CHECK(open().size() == 3);
  { const TimerClient ended = std::move(client); }
  CHECK(open() == Timers{{"job", 30s}, {"scope", 30s}});
  CHECK(scope.renew(60s));
  CHECK(open() == Timers{{"job", 30s}, {"scope", 60s}});
  scope = {};
  CHECK(open() == Timers{{"job", 30s}});
}

TEST_CASE_FIXTURE(
    WatchedClient,
    "a scope that was moved from releases nothing, and an assignment releases the old scope "
    "first") {
  auto first = client.expires(30s, "first");
  auto moved = std::move(first);
  CHECK(open() == Timers{{"first", 30s}});
  auto second = client.expires(20s, "second");
  moved = std::move(second);
  CHECK(open() == Timers{{"second", 20s}});
  TimerScope& same = moved;
  moved = std::move(same);
  CHECK(open() == Timers{{"second", 20s}});
  CHECK(moved.release());
  CHECK(open().empty());
}

TEST_CASE_FIXTURE(
    WatchedClient,
    "wrong arguments are refused with a message that quotes them, and no timer is opened") {
  const auto refusal = [&](std::chrono::nanoseconds after, const ScopeOptions& options) {
    return message_of([&] { (void)client.expires(after, "x", options); });
  };
  const auto warned = [&](std::chrono::nanoseconds after, std::chrono::nanoseconds warn_after) {
    return refusal(after, {.signal = 9, .grace = {}, .warn_after = warn_after});
  };
  CHECK(refusal(0s, {}) ==
        "the timeout is 0s: expected more than 0 and at most 1000000000s, or max() for none");
  CHECK(refusal(-3s, {}).starts_with("the timeout is -3s"));
  CHECK(refusal(kMaxTimeout + 1s, {}).starts_with("the timeout is 1000000001s"));
  CHECK(refusal(1s, {.signal = 65, .grace = {}}) == "the signal is 65: expected 0 to 64");
  CHECK(refusal(1s, {.signal = -1, .grace = {}}).starts_with("the signal is -1"));
  CHECK(refusal(1s, {.signal = 9, .grace = -1s}).starts_with("the grace is -1s"));
  CHECK(refusal(1s, {.first_timeout = 0s}).starts_with("the first timeout is 0s: expected"));
  CHECK(warned(1s, 1s) ==
        "the warning is after 1s: expected more than 0 and less than the timeout, 1s");
  CHECK(warned(1s, 0s) ==
        "the warning is after 0s: expected more than 0 and less than the timeout, 1s");
  CHECK(warned(1s, -1ms).starts_with("the warning is after -1ms"));
  CHECK(contains(warned(kNoDeadline, kNoDeadline), "less than the timeout, inf"));
  CHECK(contains(warned(kMaxTimeout, 4294967296ms), "at most 4294967295ms"));
  CHECK_THROWS_AS(client.start(0s), InvalidArgument);
  CHECK_THROWS_AS(TimerScope().renew(0s), InvalidArgument);
  CHECK(open().empty());
  auto scope = client.expires(1h, "open");
  CHECK_THROWS_AS(scope.renew(0s), InvalidArgument);
  client.start(1h);
  CHECK_THROWS_AS(client.start(0s), InvalidArgument);
  CHECK(open() == Timers{{"job", 1h}, {"open", 1h}});
}

TEST_CASE_FIXTURE(WatchedClient,
                  "a scope over the limit is not watched, and a release makes room") {
  std::vector<TimerScope> scopes;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    scopes.push_back(client.expires(1h, "s" + std::to_string(i)));
    CHECK((i % 128 != 127 || open().size() == i + 1));
  }
  auto unwatched = client.expires(1h, "one more");
  CHECK_FALSE(unwatched.times());
  CHECK_FALSE(unwatched.renew(1h));
  CHECK(open().size() == kMaxScopesPerWorker);
  CHECK(message_of([&] { (void)server.connect({.idle_timeout = 1h}); }) ==
        "there is no room on this process's page for its idle timeout");
  CHECK_NOTHROW(TimerClient::connect({.dir = server.dir(), .idle_timeout = 1h}));
  scopes.erase(scopes.begin() + 500);
  {
    auto scope = client.expires(1h, "one more");
    const Timers timers = open();
    CHECK(timers.size() == kMaxScopesPerWorker);
    CHECK(timers.contains({"one more", 1h}));
    CHECK_FALSE(timers.contains({"s500", 1h}));
  }
  while (!scopes.empty()) {
    scopes.resize((scopes.size() - 1) / 128 * 128);
    CHECK(open().size() == scopes.size());
  }
  auto after = client.expires(1h, "after");
  CHECK(open() == Timers{{"after", 1h}});
}

TEST_CASE_FIXTURE(WatchedClient,
                  "a child that is forked during calls of other threads can use the client") {
  FILETIMER_SKIP_IF(kIsThreadSanitized,
                    "with a sanitizer a child of a process with threads may hang");
  // It counts no scans: each scope writes a line, which soon fills the pipe.
  server.board().next_wake = kWakeAlways;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i](const std::stop_token& end) {
      for (int round = 0; !end.stop_requested(); ++round) {
        auto scope = client.expires(1h, std::to_string(i) + " " + std::to_string(round % 20));
        scope.renew(2h);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    CHECK(testing::in_child([&] {
            auto scope = client.expires(1h, "child");
            auto other = client.expires(1h);
            return scope.renew(1h) && scope.release() && other.release() ? 0 : 1;
          }) == 0);
  }
}
