// What the public calls ask of a server, over a transport that records. What they do on a page,
// too, is in both_ways_test.cpp.
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

TEST_CASE("a release after the deadline says so and is sent all the same") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId timer = client.acquire("step", 1ns);
  CHECK_FALSE(client.release(timer));
  CHECK(server->received().back().release);
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
  const double before =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
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
  // A busy machine makes each of them later than it is meant to be, the first one too.
  CHECK(requests[2].expiration_time >= before + 30);
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
