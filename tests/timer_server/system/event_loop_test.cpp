// The event loop, with descriptors that the test makes ready, and the service manager's protocols,
// with the test as the manager.
// SPDX-License-Identifier: MIT
#include "timer_server/system/event_loop.hpp"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/support/variable.hpp"
#include "timer_server/system/service_manager.hpp"

using namespace filetimer;
using namespace std::chrono_literals;
using testing::Variable;

namespace {

// Names sources, and notes the names of those that were dispatched.
class LoopStage {
 public:
  // A source that has an event already.
  void add(
      const std::string& name, Priority priority, Source::Handler handler = [] {}) {
    UniqueFd& fd = fds_[name];
    fd.reset(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
    sources[name] = watch_io(loop, fd.get(), EPOLLIN | EPOLLET, priority,
                             [this, name, handler = std::move(handler)] {
                               said += name + " ";
                               handler();
                             });
  }
  void raise(const std::string& name) { ::eventfd_write(fds_.at(name).get(), 1); }
  // Dispatches all events that are ready, and returns the names.
  std::string run() {
    said.clear();
    while (loop.dispatch(0, iterate)) {
    }
    return said;
  }

  EventLoop loop;
  Source::Handler iterate = [] {};
  std::map<std::string, EventSource> sources;
  std::string said;

 private:
  std::map<std::string, UniqueFd> fds_;
};

}  // namespace

TEST_CASE("Events that are ready together are dispatched by priority, the iteration after deaths") {
  LoopStage stage;
  stage.iterate = [&stage] { stage.said += "iteration "; };
  stage.add("deadline", kDeadlines);
  stage.add("ordinary", kOrdinary);
  stage.add("another", kOrdinary);
  stage.add("request", kRequests);
  stage.add("death", kDeathsFirst);
  stage.add("death2", kDeathsFirst);
  CHECK(stage.run() ==
        "death death2 iteration request iteration ordinary iteration another iteration deadline "
        "iteration ");
  CHECK(stage.run().empty());
  stage.raise("death");
  CHECK(stage.run() == "death iteration ");
}

TEST_CASE("An event that comes during a handler precedes less urgent ones that wait") {
  LoopStage stage;
  stage.add("death", kDeathsFirst);
  CHECK(stage.run() == "death ");
  stage.add("first", kOrdinary, [&stage] { stage.raise("death"); });
  stage.add("second", kOrdinary);
  CHECK(stage.run() == "first death second ");
}

TEST_CASE("A handler may end sources: its own, and those whose events wait for their turn") {
  LoopStage stage;
  const std::string long_name(100, 'x');  // which its handler owns
  stage.add("last", kDeadlines);
  stage.add("removed", kOrdinary);
  stage.add(long_name, kRequests, [&stage, long_name] {
    stage.sources.erase("removed");
    stage.sources.erase(long_name);
    stage.said += long_name == std::string(100, 'x') ? "intact " : "";
  });
  CHECK(stage.run() == long_name + " intact last ");
  stage.raise("removed");
  stage.raise(long_name);
  CHECK(stage.run().empty());
}

TEST_CASE("All deaths are noted before one iteration") {
  constexpr int kDeaths = 500;
  LoopStage stage;
  std::vector<UniqueFd> fds;
  std::vector<EventSource> sources;
  int deaths = 0;
  stage.iterate = [&] { stage.said += std::to_string(deaths); };
  for (int i = 0; i < kDeaths; ++i) {
    fds.emplace_back(::eventfd(1, EFD_CLOEXEC));
    sources.push_back(watch_io(stage.loop, fds.back().get(), EPOLLIN | EPOLLONESHOT, kDeathsFirst,
                               [&deaths] { ++deaths; }));
  }
  CHECK(stage.run() == std::to_string(kDeaths));
}

TEST_CASE("A timer expires once, not before its time, and at once if that is past") {
  LoopStage stage;
  Instant expired = Instant::never();
  int count = 0;
  const EventSource timer = make_timer(stage.loop, kDeadlines, [&] {
    expired = Instant::now();
    ++count;
  });
  const Instant when = Instant::now() + 3ms;
  timer->arm(when);
  CHECK(stage.loop.dispatch_one(10'000));
  CHECK(expired >= when);
  for (const Instant past : {when, when, Instant{0}, Instant{-5}}) {
    timer->arm(past);
    CHECK(stage.loop.dispatch_one(10'000));
  }
  CHECK(count == 5);
  CHECK_FALSE(stage.loop.dispatch_one(0));
  timer->arm(Instant::now() + 1h);
  CHECK_FALSE(stage.loop.dispatch_one(0));
  timer->arm(Instant::now());
  timer->arm(Instant::never());
  CHECK_FALSE(stage.loop.dispatch_one(20));
}

// --- the service manager -----------------------------------------------------------------------

namespace {

// The socket of a service manager, with an abstract name. The process tests have one with a path.
class NotifySocket {
 public:
  NotifySocket() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name_.copy(address.sun_path, name_.size());
    address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  }
  // Returns the oldest message, or nothing.
  [[nodiscard]] std::string take() const {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  const std::string name_ = "@filetimer-test-" + std::to_string(::getpid());
  const Variable variable_{"NOTIFY_SOCKET", name_.c_str()};
  const UniqueFd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
};

}  // namespace

TEST_CASE("A status is sent when it has changed, and later if there was no room for it") {
  const NotifySocket socket;
  ServiceManager manager;
  for (int i = 0; i < 1000; ++i) {  // more than the queue holds
    manager.notify_stopping();
  }
  manager.notify_status(0, 0);
  while (!socket.take().empty()) {
  }
  manager.notify_status(0, 0);
  CHECK(socket.take() == "READY=1\nSTATUS=watching 0 workers, killed 0 since the start");
  manager.notify_status(0, 0);
  manager.notify_status(1, 2);
  CHECK(socket.take() == "STATUS=watching 1 worker, killed 2 since the start");
  CHECK(socket.take().empty());
}

TEST_CASE("The first keep-alive is sent at once, where keep-alives are asked for") {
  const NotifySocket socket;
  const auto first_of = [&](const char* period, const char* pid) {
    const Variable usec("WATCHDOG_USEC", period);
    const Variable whose("WATCHDOG_PID", pid);
    EventLoop loop;
    ServiceManager().start_keep_alives(loop);
    return socket.take();
  };
  CHECK(first_of("30000000", nullptr) == "WATCHDOG=1");
  CHECK(first_of("30000000", std::to_string(::getpid()).c_str()) == "WATCHDOG=1");
  for (const char* other : {"1", "me", ""}) {
    CHECK(first_of("30000000", other).empty());
  }
  for (const char* wrong : {"0", "-5", "5s", "", "9223372036854775807", "99999999999999999999"}) {
    CHECK(first_of(wrong, nullptr).empty());
  }
}

TEST_CASE("Passed descriptors are those that LISTEN_PID and LISTEN_FDS announce to this process") {
  const std::string pid = std::to_string(::getpid());
  struct Case {
    const char* pid;
    const char* count;
    const char* trouble;  // null: nothing was passed
  };
  const Case cases[] = {{nullptr, "1", nullptr},
                        {"1", "1", nullptr},
                        {pid.c_str(), nullptr, nullptr},
                        {"x", "1", "$LISTEN_PID 'x'"},
                        {pid.c_str(), "", "$LISTEN_FDS ''"},
                        {pid.c_str(), "0", "$LISTEN_FDS '0'"},
                        {pid.c_str(), "1x", "Invalid argument"},
                        {pid.c_str(), "99999999999", "Invalid argument"},
                        {pid.c_str(), "3", "3 descriptors were passed ('a', 'b', 'c')"}};
  for (const Case& each : cases) {
    const Variable whose("LISTEN_PID", each.pid);
    const Variable count("LISTEN_FDS", each.count);
    const Variable names("LISTEN_FDNAMES", "a:b:c");
    const auto passed = take_passed_descriptor();
    CAPTURE(each.pid);
    CAPTURE(each.count);
    if (each.trouble == nullptr) {
      CHECK((passed && !*passed));
    } else {
      REQUIRE_FALSE(passed);
      CAPTURE(passed.error().message);
      CHECK(passed.error().message.find(each.trouble) != std::string::npos);
    }
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
      CHECK(std::getenv(name) == nullptr);
    }
  }
}
