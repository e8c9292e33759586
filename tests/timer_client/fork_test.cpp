// After fork() the child is a worker of its own, also when other threads were busy.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filetimer/timer_client.hpp>
#include <set>
#include <thread>

#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::in_child;

namespace {

// ThreadSanitizer itself can't follow a child of a multithreaded process that starts a thread
// ("dup thread with used id"); and in AddressSanitizer's allocator another thread may hold a lock
// at the fork, for which the child then waits for ever.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kNoThreadsInChild = true;
#else
constexpr bool kNoThreadsInChild = false;
#endif

}  // namespace

TEST_CASE("a child releases nothing of its parent's and opens scopes of its own") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  auto client = client_on(pipe);
  std::optional<TimerScope> scope(client.expires(1h, "step"));
  const TimerId timer = client.acquire("timer", 1h);
  client.start(2h);
  for (int i = 0; i < 3; ++i) {
    CHECK(pipe.next().pid == ::getpid());
  }
  const int code = in_child([&] {
    int wrong = 0;
    wrong += client.release(timer) ? 1 : 0;
    wrong += client.renew(timer, 1h) ? 2 : 0;
    wrong += scope->release() ? 4 : 0;
    wrong += client.stop() ? 8 : 0;
    scope.reset();
    { auto own = client.expires(1h, "step"); }
    client.start(1h);
    { auto gone = std::move(client); }
    return wrong;
  });
  CHECK(code == 0);
  const auto acquired = pipe.next();
  CHECK(acquired.pid != ::getpid());
  CHECK(acquired.scope_id == "step");  // nothing is open in the child: no number
  CHECK(pipe.next().is_release());
  CHECK(pipe.next().scope_id == "job");
  const auto last = pipe.next();  // the child's client released what it had started
  CHECK(last.scope_id == "job");
  CHECK(last.is_release());
  CHECK(pipe.is_silent());
  CHECK(client.release(timer));
  CHECK(scope->release());
}

TEST_CASE("a child has a delivering thread of its own when it needs one" *
          doctest::skip(kNoThreadsInChild)) {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  auto client = client_on(pipe);
  const TimerId parents = client.acquire("parents", 1h);
  CHECK(pipe.next().scope_id == "parents");
  const auto bytes = pipe.fill();
  CHECK(client.release(parents));  // now the parent's thread runs
  int told[2];
  REQUIRE(::pipe(told) == 0);
  std::thread drain([&] {
    char byte = 0;
    if (::read(told[0], &byte, 1) == 1) {
      pipe.drain(bytes);
    }
  });
  const pid_t child = ::fork();
  if (child == 0) {
    auto own = client.expires(1h, "childs");  // can't be sent yet
    const bool started = ::write(told[1], "x", 1) == 1;
    // Watched by a bound: the parent ends it, or the alarm does.
    ::alarm(
        static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(testing::kBound).count()));
    ::pause();
    ::_exit(started ? 0 : 1);
  }
  ::close(told[1]);  // should the child die early, the thread reads the end
  drain.join();
  std::set<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    const auto line = pipe.next();
    CHECK(line.pid == (line.is_release() ? ::getpid() : child));
    seen.insert(line.scope_id);
  }
  CHECK(seen == std::set<std::string>{"childs", "parents"});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(told[0]);
}

TEST_CASE("a fork in the middle of other threads' calls leaves the child able to work" *
          doctest::skip(kNoThreadsInChild)) {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));  // read by nobody: full soon, so the thread runs too
  auto client = client_on(pipe);
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        auto scope = client.expires(1h, "busy");
        scope.renew(2h);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const int code = in_child([&] {
      auto scope = client.expires(1h, "child");
      return scope.renew(1h) && scope.release() ? 0 : 1;
    });
    CHECK(code == 0);
  }
  done = true;
  for (auto& thread : threads) {
    thread.join();
  }
}
