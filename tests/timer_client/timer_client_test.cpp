// What the public calls ask of a server, and what they refuse, over a transport that records.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filetimer/timer_client.hpp>
#include <set>
#include <thread>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::client_of;
using testing::message_of;
using testing::Recorder;

TEST_CASE("a scope is acquired with its deadline and released at the end of its block") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const double before = static_cast<double>(ClockReading::now().wall_ns) / 1e9;
  { auto scope = client.expires(30s, "forward"); }
  const double after = static_cast<double>(ClockReading::now().wall_ns) / 1e9;
  const auto requests = server->received();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].pid == ::getpid());
  CHECK(requests[0].tid == ::gettid());
  CHECK(requests[0].timer_id == "forward");
  CHECK(requests[0].scope == "forward");
  CHECK_FALSE(requests[0].release);
  CHECK(requests[0].timeout == 30s);
  CHECK(requests[0].expiration_time >= before + 30);
  CHECK(requests[0].expiration_time <= after + 30.001);
  CHECK(requests[0].signal == 9);
  CHECK(requests[0].grace < 0s);
  CHECK(requests[1].release);
  CHECK(requests[1].timer_id == "forward");
}

TEST_CASE("nested scopes of one name are timers of their own") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  {
    auto outer = client.expires(30s, "step");
    { auto inner = client.expires(10s, "step"); }
  }
  const auto requests = server->received();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].timer_id == "step");
  CHECK(requests[1].timer_id == "step#2");
  CHECK(requests[1].scope == "step");
  CHECK(requests[2].timer_id == "step#2");
  CHECK(requests[2].release);
  CHECK(requests[3].timer_id == "step");
}

TEST_CASE("two clients of one process do not share a timer") {
  const auto server = std::make_shared<Recorder>();
  auto first = client_of(server);
  auto second = client_of(server);
  auto one = first.expires(30s, "step");
  auto other = second.expires(30s, "step");
  const auto requests = server->received();
  CHECK(requests[0].timer_id == "step");
  CHECK(requests[1].timer_id == "step#2");
}

TEST_CASE("on the pipe, a scope without a name is called after the caller's file and line") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  auto scope = client.expires(30s);
  const auto line = __LINE__ - 1;
  CHECK(server->received()[0].scope == "timer_client_test.cpp:" + std::to_string(line));
}

TEST_CASE("renew moves the deadline of an open timer and says when there is none") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId timer = client.acquire("step", 10s);
  CHECK(client.renew(timer, 60s));
  const auto requests = server->received();
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].timer_id == "step");
  CHECK(requests[1].timeout == 60s);
  CHECK(requests[1].expiration_time - requests[0].expiration_time >= 49.9);
  CHECK(client.release(timer));
  CHECK_FALSE(client.renew(timer, 60s));
  CHECK_FALSE(client.release(timer));
  CHECK_FALSE(client.release(TimerId{}));
  CHECK_FALSE(client.renew(TimerId{}, 1s));
  CHECK(server->received().size() == 3);
}

TEST_CASE("a release after the deadline says so and is sent all the same") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId timer = client.acquire("step", 1ns);
  CHECK_FALSE(client.release(timer));
  CHECK(server->received().back().release);
}

TEST_CASE("an endless scope has an infinite deadline") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  auto scope = client.expires(kNoDeadline, "idle");
  CHECK(std::isinf(server->received()[0].expiration_time));
  CHECK(scope.release());
  CHECK_FALSE(scope.release());
}

TEST_CASE("start and stop are one timer, renewed by a second start") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  client.start(1h);
  client.start(2h);
  CHECK(client.stop());
  CHECK_FALSE(client.stop());
  const auto requests = server->received();
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].timer_id == "job");
  CHECK(requests[1].timer_id == "job");
  CHECK(requests[1].timeout == 2h);
  CHECK(requests[2].release);
}

TEST_CASE("a client releases its timers when it goes, and leaves open scopes watched") {
  const auto server = std::make_shared<Recorder>();
  std::optional<TimerClient> client(client_of(server));
  client->acquire("acquired", 30s);
  client->start(1h);
  std::optional<TimerScope> scope(client->expires(30s, "scope"));
  client.reset();
  auto requests = server->received();
  REQUIRE(requests.size() == 5);
  CHECK(requests[3].release);
  CHECK(requests[4].release);
  CHECK(std::set{requests[3].timer_id, requests[4].timer_id} ==
        std::set<std::string>{"acquired", "job"});
  CHECK(scope->renew(60s));
  scope.reset();
  requests = server->received();
  REQUIRE(requests.size() == 7);
  CHECK(requests[6].timer_id == "scope");
  CHECK(requests[6].release);
}

TEST_CASE(
    "on the pipe, a scope that was moved from releases nothing, one that is assigned to releases "
    "first") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  auto first = client.expires(30s, "first");
  auto moved = std::move(first);
  auto second = client.expires(30s, "second");
  moved = std::move(second);
  const auto requests = server->received();
  REQUIRE(requests.size() == 3);
  CHECK(requests[2].timer_id == "first");
  CHECK(requests[2].release);
  CHECK(moved.release());
}

TEST_CASE("another process can be watched, with a signal and a grace of its own") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  ScopeOptions options;
  options.pid = ::getppid();
  options.signal = 15;
  options.grace = 5s;
  auto scope = client.expires(30s, "parent", options);
  const auto request = server->received()[0];
  CHECK(request.pid == ::getppid());
  CHECK(request.tid == 0);
  CHECK(request.signal == 15);
  CHECK(request.grace == 5s);
}

TEST_CASE("wrong arguments are refused with a message that quotes them, and nothing is sent") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const auto acquire = [&](std::string_view name, std::chrono::nanoseconds after,
                           const ScopeOptions& options) {
    return [&client, name, after, options] { client.acquire(name, after, options); };
  };
  CHECK(testing::contains(message_of(acquire("", 1s, {})), "name is empty"));
  CHECK(testing::contains(message_of(acquire("x", 0s, {})), "timeout is 0s"));
  CHECK(testing::contains(message_of(acquire("x", -3s, {})), "timeout is -3s"));
  CHECK(
      testing::contains(message_of(acquire("x", kMaxTimeout + 1s, {})), "timeout is 1000000001s"));
  CHECK(
      testing::contains(message_of(acquire("x", 1s, {.signal = 65, .grace = {}})), "signal is 65"));
  CHECK(
      testing::contains(message_of(acquire("x", 1s, {.signal = -1, .grace = {}})), "signal is -1"));
  CHECK(
      testing::contains(message_of(acquire("x", 1s, {.signal = 9, .grace = -1s})), "grace is -1s"));
  CHECK(testing::contains(message_of(acquire("x", 1s, {.signal = 9, .grace = {}, .pid = -7})),
                          "pid is -7"));
  const auto warned = [&](std::chrono::nanoseconds after, std::chrono::nanoseconds warn_after) {
    ScopeOptions options;
    options.warn_after = warn_after;
    return message_of(acquire("x", after, options));
  };
  CHECK(warned(1s, 1s) ==
        "the warning is after 1s: expected more than 0 and less than the timeout, 1s");
  CHECK(testing::contains(warned(1s, 0s), "warning is after 0s"));
  CHECK(testing::contains(warned(1s, -1ms), "warning is after -1ms"));
  CHECK(testing::contains(warned(kNoDeadline, kNoDeadline), "less than the timeout, inf"));
  CHECK(testing::contains(warned(kMaxTimeout, 4294967296ms), "at most 4294967295ms"));
  CHECK_THROWS_AS(client.start(0s), InvalidArgument);
  CHECK_THROWS_AS(client.renew(TimerId{}, 0s), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(client.expires(-1s)), InvalidArgument);
  CHECK(server->attempts() == 0);
}

TEST_CASE("a soft deadline goes with each acquire and renewal, and also without a deadline") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  ScopeOptions options;
  options.warn_after = 1500us;
  auto endless = client.expires(kNoDeadline, "x", options);
  auto scope = client.expires(2ms, "y", options);
  CHECK(scope.renew(1h));
  auto plain = client.expires(1h, "z");
  const auto requests = server->received();
  REQUIRE(requests.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(requests[i].warn_after == 1500us);
  }
  CHECK(requests[3].warn_after == 0s);
}

TEST_CASE("signal 0, the longest timeout and a grace of nothing are fine") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  auto scope = client.expires(kMaxTimeout, "x", {.signal = 0, .grace = 0s});
  auto never = client.expires(1h, "y", {.signal = 64, .grace = kNoDeadline});
  const auto requests = server->received();
  CHECK(requests[0].signal == 0);
  CHECK(requests[0].grace == 0s);
  CHECK(requests[1].grace == kNoDeadline);
}

TEST_CASE("names of any length and any bytes are timers that differ") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const std::string longest(70'000, 'x');
  std::vector<TimerScope> scopes;
  scopes.push_back(client.expires(30s, longest + "1"));
  scopes.push_back(client.expires(30s, longest + "2"));
  scopes.push_back(client.expires(30s, std::string("\0\xff\n\"\\", 5)));
  scopes.push_back(client.expires(30s, "vorwärts"));
  std::set<std::string> ids;
  for (const auto& request : server->received()) {
    CHECK(request.scope.size() <= kMaxScopeNameBytes);
    ids.insert(request.timer_id);
  }
  CHECK(ids.size() == 4);
  CHECK(ids.contains("vorwärts"));
}

TEST_CASE("the scope over the limit is refused, and one fewer makes room again") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  std::vector<TimerScope> scopes;
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    scopes.push_back(client.expires(1h, "s" + std::to_string(i)));
  }
  CHECK(testing::contains(message_of([&] { client.acquire("one more", 1h); }),
                          "1024 scopes are open"));
  scopes.pop_back();
  CHECK(client.acquire("one more", 1h));
}

TEST_CASE("connect says where it looked, why there is no server and how long it tried") {
  const testing::TempFolder folder;
  ConnectOptions options;
  options.dir = folder.path();
  options.timeout = 30ms;
  const std::string message = message_of([&] { TimerClient::connect(std::move(options)); });
  CHECK(message == "no timer server at '" + folder.path("requests") +
                       "': there is no such pipe (tried for 30ms)");
  ConnectOptions negative;
  negative.timeout = -1s;
  CHECK_THROWS_AS(TimerClient::connect(std::move(negative)), InvalidArgument);
}

TEST_CASE("connect asks its caller while it waits, and ends with what the caller throws") {
  const testing::TempFolder folder;
  ConnectOptions options;
  options.dir = folder.path();
  options.timeout = 1h;
  int asked = 0;
  options.while_waiting = [&] {
    if (++asked == 2) {
      throw std::domain_error("enough");
    }
  };
  CHECK_THROWS_AS(TimerClient::connect(std::move(options)), std::domain_error);
}

TEST_CASE("connect waits for a server that is being started") {
  const auto server = std::make_shared<Recorder>();
  server->answer(Recorder::Sent::kNoServer);
  std::thread start([&] { server->answer(Recorder::Sent::kYes); });
  auto client = client_of(server);
  start.join();
  CHECK(client.is_watched());
  CHECK(client.target() == "recorder");
}

TEST_CASE("eight threads with scopes of one name leave nothing open and mix nothing up") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        auto outer = client.expires(30s, "step");
        auto inner = client.expires(30s, "inner");
        inner.renew(40s);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const auto requests = server->received();
  CHECK(requests.size() == kThreads * kRounds * 5);
  std::set<std::string> open;
  for (const auto& request : requests) {
    if (request.release) {
      REQUIRE(open.erase(request.timer_id) == 1);
    } else if (request.timeout == 30s) {
      REQUIRE(open.insert(request.timer_id).second);  // never an id that is in use
    } else {
      REQUIRE(open.contains(request.timer_id));
    }
  }
  CHECK(open.empty());
}

TEST_CASE("over the pipe, too, a heartbeat is renewed by its beats and times are told") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  {
    auto heart = client.heartbeat(5s, "loop", {.first_timeout = 10min});
    const auto times = heart.times();
    REQUIRE(times.has_value());
    CHECK(times->elapsed >= 0s);
    CHECK(times->remaining <= 10min);
    CHECK(times->remaining > 9min);
    CHECK(heart.beat());
    CHECK(heart.times()->remaining <= 5s);
    CHECK(heart.times()->elapsed >= times->elapsed);
    CHECK(heart.release());
    CHECK_FALSE(heart.beat());
    CHECK(!heart.times());
  }
  const auto requests = server->received();
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].timeout == 10min);
  CHECK(requests[1].timeout == 5s);
  CHECK(requests[2].release);
  CHECK_THROWS_AS(client.start(), InvalidArgument);  // nobody tells of a --default-timeout
  auto endless = client.expires(kNoDeadline, "endless");
  CHECK(endless.times()->remaining == kNoDeadline);
}

TEST_CASE("over the pipe a paused timer has no deadline, and then what was left") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId timer = client.acquire("step", 30s);
  CHECK(client.pause(timer));
  CHECK(client.pause(timer));
  CHECK(client.times(timer)->is_paused);
  CHECK(client.times(timer)->remaining <= 30s);
  CHECK(client.resume(timer));
  CHECK(client.resume(timer));
  CHECK_FALSE(client.times(timer)->is_paused);
  CHECK(client.pause(timer));
  CHECK(client.renew(timer, 1h));
  CHECK(client.times(timer)->remaining == 1h);
  CHECK(client.resume(timer));
  CHECK(client.release(timer));
  CHECK_FALSE(client.pause(timer));
  CHECK_FALSE(client.resume(timer));
  const auto requests = server->received();
  REQUIRE(requests.size() == 6);
  CHECK(requests[1].timeout == kNoDeadline);
  CHECK(std::isinf(requests[1].expiration_time));
  CHECK(requests[2].timeout == 30s);  // so the server shifts its beginning
  CHECK(requests[2].expiration_time >= requests[0].expiration_time);
  CHECK(requests[2].expiration_time < requests[0].expiration_time + 29);
  CHECK(std::isinf(requests[3].expiration_time));
  CHECK(requests[4].timeout == 1h);
  CHECK(requests[5].release);
}

TEST_CASE("over the pipe an unlimited region suspends the timers of its thread") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId outer = client.acquire("outer", 30s);
  ScopeOptions of_other;
  of_other.pid = ::getppid();
  client.acquire("of another process", 30s, of_other);
  {
    const auto region = client.unlimited("checkpoint");
    auto inner = client.expires(20s, "inner");
    CHECK(inner.times()->remaining <= 20s);
    CHECK(inner.times()->remaining > 10s);
    CHECK(client.times(outer)->is_paused);
    CHECK(inner.renew(10s));
    CHECK(inner.times()->remaining == 10s);
  }
  CHECK_FALSE(client.times(outer)->is_paused);
  for (const TimerRequest& request : server->received()) {
    CAPTURE(request.scope);
    if (request.scope == "inner" && !request.release) {
      CHECK(std::isinf(request.expiration_time));
    }
    if (request.scope == "of another process") {
      CHECK_FALSE(std::isinf(request.expiration_time));
    }
  }
}

TEST_CASE("over the pipe an idle timeout is a timer that is open while no scope is") {
  const auto server = std::make_shared<Recorder>();
  ConnectOptions options;
  options.idle_timeout = 5s;
  {
    auto client = client_of(server, std::move(options));
    CHECK(server->received().empty());
    {
      auto outer = client.expires(30s, "outer");
      { auto inner = client.expires(20s, "inner"); }
      CHECK(server->received().size() == 3);
    }
    {
      const auto requests = server->received();
      REQUIRE(requests.size() == 5);
      CHECK(requests[3].release);
      CHECK(requests[4].scope == "(idle)");
      CHECK(requests[4].timeout == 5s);
      CHECK_FALSE(requests[4].release);
    }
    auto again = client.expires(30s, "again");
    CHECK(server->received().size() == 7);
    CHECK(server->received()[6].release);
    CHECK(server->received()[6].timer_id == "(idle)");
    CHECK(again.release());
    CHECK(server->received().size() == 9);
  }
  REQUIRE(server->received().size() == 10);  // with the client
  CHECK(server->received()[9].release);
}
