// What could not be sent at once is sent later: full pipes, servers that go and come back.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <fstream>
#include <map>
#include <set>

#include "tests/timer_client/client_fixture.hpp"
#include "common/clock.hpp"
#include "timer_client/src/pipe/outbox.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::client_of;
using testing::Recorder;
using Sent = Transport::Sent;

namespace {

bool has_release_of(const std::vector<TimerRequest>& requests, const std::string& id) {
  return std::any_of(requests.begin(), requests.end(), [&](const TimerRequest& request) {
    return request.release && request.timer_id == id;
  });
}

}  // namespace

TEST_CASE("a release that could not be sent reaches the server later") {
  for (const Sent failure : {Sent::kTryLater, Sent::kNoServer}) {
    const auto server = std::make_shared<Recorder>();
    auto client = client_of(server);
    const TimerId timer = client.acquire("step", 30s);
    server->answer(failure);
    CHECK(client.release(timer));
    CHECK(client.is_watched() == (failure == Sent::kTryLater));
    server->answer(Sent::kYes);
    CHECK(server->wait([](const auto& all) { return has_release_of(all, "step"); }));
  }
}

TEST_CASE("a release that waits is delivered though the client is gone") {
  const auto server = std::make_shared<Recorder>();
  {
    auto client = client_of(server);
    client.acquire("step", 30s);
    server->answer(Sent::kTryLater);
  }
  server->answer(Sent::kYes);
  CHECK(server->wait([](const auto& all) { return has_release_of(all, "step"); }));
}

TEST_CASE("a scope that came and went while nothing could be sent is never mentioned") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId before = client.acquire("before", 30s);
  server->answer(Sent::kTryLater);
  for (int i = 0; i < 1000; ++i) {
    auto scope = client.expires(30s, "lost");
  }
  CHECK(client.release(before));
  server->answer(Sent::kYes);
  REQUIRE(server->wait([](const auto& all) { return has_release_of(all, "before"); }));
  CHECK(server->received().size() == 2);
}

TEST_CASE("an acquire that is sent later keeps its first deadline") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  server->answer(Sent::kTryLater);
  const auto in_30_s = [] { return static_cast<double>(ClockReading::now().wall_ns) / 1e9 + 30; };
  const double earliest = in_30_s();
  auto scope = client.expires(30s, "step");
  const double latest = in_30_s();
  std::this_thread::sleep_for(20ms);  // by so much a deadline from the time of sending is later
  server->answer(Sent::kYes);
  REQUIRE(server->wait_for_count(1));
  CHECK(server->received()[0].timeout == 30s);
  const double told = server->received()[0].expiration_time;
  constexpr double kSlew = 1e-3;  // of a wall clock that is being corrected
  CHECK(told >= earliest - kSlew);
  CHECK(told <= latest + kSlew);
}

TEST_CASE("an id whose release waits is not given to a newer scope") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  const TimerId old = client.acquire("step", 30s);
  server->answer(Sent::kTryLater);
  client.release(old);
  auto newer = client.expires(40s, "step");
  server->answer(Sent::kYes);
  REQUIRE(server->wait_for_count(3));
  const auto requests = server->received();
  CHECK(requests[1].release);
  CHECK(requests[1].timer_id == "step");
  CHECK(requests[2].timer_id == "step#2");
}

TEST_CASE("nothing overtakes what waits, so releases that wait stay bounded") {
  ScopeIds ids;
  const auto server = std::make_shared<Recorder>();
  class Forward final : public Transport {
   public:
    explicit Forward(std::shared_ptr<Recorder> to) : to_(std::move(to)) {}
    Sent send(const TimerRequest& request) noexcept override { return to_->take(request); }
    bool server_is_there(std::string&) noexcept override { return true; }
    [[nodiscard]] std::string target() const override { return ""; }

   private:
    std::shared_ptr<Recorder> to_;
  };
  Outbox outbox(std::make_unique<Forward>(server), ids);
  const auto acquire = [&](Outbox::Number number, const std::string& name) {
    TimerRequest request;
    request.pid = 1;
    request.timer_id = *ids.open(1, name);
    outbox.acquire(number, request, Instant::never(), Outbox::Owner::kClient);
  };
  for (Outbox::Number number = 1; number <= 3; ++number) {
    acquire(number, "old");
  }
  outbox.flush(10, Outbox::Sender::kCaller);
  for (Outbox::Number number = 1; number <= 3; ++number) {
    outbox.release(number, Instant{});
  }
  acquire(4, "new");
  outbox.flush(2, Outbox::Sender::kCaller);  // a call carries off only so much
  CHECK(outbox.has_pending());
  CHECK(server->received().size() == 5);
  outbox.flush(2, Outbox::Sender::kCaller);
  CHECK_FALSE(outbox.has_pending());
  const auto requests = server->received();
  CHECK(requests[5].release);
  CHECK(requests[6].timer_id == "new");
}

TEST_CASE("a server that came back is told of every open timer") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  auto first = client.expires(30s, "first");
  auto second = client.expires(kNoDeadline, "second");
  server->answer(Sent::kNoServer);
  auto third = client.expires(30s, "third");  // here the client sees that it is gone
  CHECK_FALSE(client.is_watched());
  server->answer(Sent::kYes);
  REQUIRE(server->wait_for_count(5));
  std::set<std::string> announced;
  for (const auto& request : server->received()) {
    CHECK_FALSE(request.release);
    announced.insert(request.timer_id);
  }
  CHECK(announced == std::set<std::string>{"first", "second", "third"});
  CHECK(client.is_watched());
}

TEST_CASE("without a server a client that asked for it carries on, and is watched later") {
  const testing::TempFolder folder;
  ConnectOptions options;
  options.dir = folder.path();
  options.when_missing = ConnectOptions::Missing::kUnwatched;
  auto client = TimerClient::connect(std::move(options));
  CHECK_FALSE(client.is_watched());
  auto scope = client.expires(30s, "early");
  testing::Pipe pipe(folder.path("requests"));
  CHECK(pipe.next().scope_id == "early");
  CHECK(client.is_watched());
  CHECK(scope.release());  // while there is somebody to hear it: ids are shared by all tests
}

TEST_CASE("a full pipe blocks nobody, and every release arrives after it was drained") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  auto client = client_on(pipe, 0s);
  std::vector<TimerId> timers;
  for (int i = 0; i < 100; ++i) {
    timers.push_back(client.acquire("t" + std::to_string(i), 1h));
  }
  for (int i = 0; i < 100; ++i) {
    CHECK_FALSE(pipe.next().is_release());
  }
  const auto bytes = pipe.fill();
  for (const TimerId timer : timers) {
    CHECK(client.release(timer));
  }
  auto open = client.expires(1h, "open");
  pipe.drain(bytes);
  std::set<std::string> released;
  for (int i = 0; i < 100; ++i) {
    const auto line = pipe.next();
    CHECK(line.is_release());
    released.insert(line.scope_id);
  }
  CHECK(released.size() == 100);
  CHECK(pipe.next().scope_id == "open");
}

TEST_CASE("scopes in a tight loop against a reader that is slow leave nothing armed") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  auto client = client_on(pipe, 0s);
  for (int i = 0; i < 5'000; ++i) {
    auto scope = client.expires(1h, "step");
  }
  client.acquire("end", 1h);
  std::set<std::string> open;
  for (;;) {
    const auto line = pipe.next();
    if (line.scope_id == "end") {
      break;
    }
    if (line.is_release()) {
      CHECK(open.erase(line.scope_id) == 1);
    } else {
      open.insert(line.scope_id);
    }
  }
  CHECK(open.empty());
}

TEST_CASE("a server that goes raises no SIGPIPE, and its successor is told what is open") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  auto client = client_on(pipe, 0s);
  auto scope = client.expires(1h, "long");
  CHECK(pipe.next().scope_id == "long");
  pipe.close();
  CHECK(scope.renew(2h));
  CHECK_FALSE(client.is_watched());
  { auto lost = client.expires(1h, "unseen"); }
  pipe.open();
  const auto line = pipe.next();
  CHECK(line.scope_id == "long");
  CHECK(line.x_timeout_s == 7200);
  CHECK(scope.release());
  CHECK(pipe.next().is_release());
}

TEST_CASE("the thread that delivers later takes none of the worker's signals") {
  const auto server = std::make_shared<Recorder>();
  auto client = client_of(server);
  server->answer(Sent::kTryLater);
  auto scope = client.expires(1h, "step");
  // The thread is named by itself and so may not be yet: look until it is.
  bool found = false;
  const auto until = Instant::now() + testing::kBound;
  while (!found && Instant::now() < until) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(entry.path() / "status");
      std::map<std::string, std::string> fields;
      for (std::string key, value; status >> key && std::getline(status, value);) {
        fields[key] = value.substr(1);
      }
      if (fields["Name:"] == "filetimer") {
        found = true;
        // All but SIGKILL, SIGSTOP and the two that glibc keeps for itself.
        CHECK(fields["SigBlk:"] == "fffffffe7ffbfeff");
      }
    }
  }
  CHECK(found);
  server->answer(Sent::kYes);
}
