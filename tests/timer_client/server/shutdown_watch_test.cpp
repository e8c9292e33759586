// What a client does when the server has announced its end on the board.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "common/mapped_file.hpp"
#include "common/sanitizers.hpp"
#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::FakeServer;
using testing::slots_of;

namespace {

void announce(const FakeServer& server, Announcement announcement) {
  server.board().announcement = static_cast<std::uint32_t>(announcement);
  ::syscall(SYS_futex, &server.board().announcement, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until each other thread of the test waits in futex(). Then none of them is in the middle of
// an allocation, say, whose lock a forked child would wait for in vain.
void wait_until_threads_wait() {
  const auto all_wait = [] {
    return std::ranges::all_of(std::filesystem::directory_iterator("/proc/self/task"),
                               [](const auto& thread) {
                                 std::ifstream file(thread.path() / "syscall");
                                 std::string call;
                                 file >> call;
                                 return thread.path().filename() == std::to_string(::gettid()) ||
                                        call == std::to_string(SYS_futex);
                               });
  };
  const auto until = std::chrono::steady_clock::now() + testing::kBound;
  while (!all_wait()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(1ms);
  }
}

// A promise that a callback keeps is declared before the client, whose end waits for the callback:
// set_value() may still be at work when its future is ready.
bool is_ready(const std::future<void>& future) {
  return future.wait_for(testing::kBound) == std::future_status::ready;
}

// A process that holds the lock of the status page, as a server does.
std::unique_ptr<Child> process_of(const FakeServer& server) {
  return std::make_unique<Child>([path = server.dir() + "/server"] {
    static auto lock = FileLock::take(path);
    if (!lock) {
      ::_exit(1);
    }
  });
}

}  // namespace

TEST_CASE("a shutdown that is announced is told once, and draining is not") {
  FakeServer server;
  std::atomic<int> calls = 0;
  std::promise<void> told;
  std::promise<void> told_again;
  auto client = server.connect();
  client.on_shutdown([&] {
    ++calls;
    told.set_value();  // a second time would throw
  });
  announce(server, Announcement::kDraining);
  announce(server, Announcement::kNone);
  CHECK(calls == 0);
  announce(server, Announcement::kShutdown);
  CHECK(is_ready(told.get_future()));
  announce(server, Announcement::kNone);
  announce(server, Announcement::kShutdown);
  // Another one, which the same announcement concerns.
  client.on_shutdown([&] { told_again.set_value(); });
  CHECK(is_ready(told_again.get_future()));
  CHECK(calls == 1);
}

TEST_CASE("a server that has stopped before its announcement was seen is told of, too") {
  FakeServer server;
  std::promise<void> told;
  auto client = server.connect();
  client.on_shutdown([&] { told.set_value(); });
  server.board().state = static_cast<std::uint32_t>(ServerState::kStopped);
  announce(server, Announcement::kNone);
  CHECK(is_ready(told.get_future()));
}

TEST_CASE("all callbacks are called, also one that a callback registers") {
  FakeServer server;
  std::promise<void> first;
  std::promise<void> second;
  std::promise<void> third;
  auto client = server.connect();
  client.on_shutdown([&] { first.set_value(); });
  client.on_shutdown([&] {
    client.on_shutdown([&] { third.set_value(); });
    second.set_value();
  });
  announce(server, Announcement::kShutdown);
  CHECK(is_ready(first.get_future()));
  CHECK(is_ready(second.get_future()));
  CHECK(is_ready(third.get_future()));
}

TEST_CASE("the client's end takes the callback away") {
  FakeServer server;
  std::atomic<bool> called = false;
  auto owned = std::make_shared<int>();
  server.connect().on_shutdown([&called, owned] { called = true; });
  CHECK(owned.use_count() == 1);
  announce(server, Announcement::kShutdown);
  // A later client's is called; by then the first one's would have been.
  std::promise<void> told;
  auto client = server.connect();
  client.on_shutdown([&] { told.set_value(); });
  CHECK(is_ready(told.get_future()));
  CHECK_FALSE(called);
}

TEST_CASE("the client's end waits for a callback that runs") {
  FakeServer server;
  std::promise<void> running;
  std::promise<void> go_on;
  std::atomic<bool> has_returned = false;
  auto client = std::make_unique<TimerClient>(server.connect());
  client->on_shutdown([&] {
    running.set_value();
    go_on.get_future().wait();
    std::this_thread::sleep_for(10ms);  // to be overtaken, if somebody does not wait
    has_returned = true;
  });
  announce(server, Announcement::kShutdown);
  REQUIRE(is_ready(running.get_future()));
  go_on.set_value();
  client.reset();
  CHECK(has_returned);
}

TEST_CASE("a callback may end its own client") {
  FakeServer server;
  std::optional<TimerClient> client(server.connect());
  // Shared with the callback, which may still run when the test ends.
  const auto ended = std::make_shared<std::promise<void>>();
  client->on_shutdown([&client, ended] {
    client.reset();
    ended->set_value();
  });
  announce(server, Announcement::kShutdown);
  CHECK(is_ready(ended->get_future()));
}

// ThreadSanitizer lets no child of a process with threads start one.
TEST_CASE("a forked child has no callback of its parent's, and may have its own") {
  if (kIsThreadSanitized) {
    FILETIMER_SKIP(
        "ThreadSanitizer cannot follow a child of a process with threads that starts one");
  }
  FakeServer server;
  std::optional<TimerClient> client(server.connect());
  std::atomic<bool> called = false;
  client->on_shutdown([&] { called = true; });
  wait_until_threads_wait();
  CHECK(testing::in_child([&] {
          std::promise<void> told;
          client->on_shutdown([&] { told.set_value(); });
          announce(server, Announcement::kShutdown);
          if (!is_ready(told.get_future()) || called) {
            return 1;
          }
          client.reset();
          return 0;
        }) == 0);
}

TEST_CASE("a child that ends the client does not wait for its parent's callback") {
  FakeServer server;
  std::promise<void> running;
  std::promise<void> go_on;
  std::optional<TimerClient> client(server.connect());
  client->on_shutdown([&] {
    running.set_value();
    go_on.get_future().wait();
  });
  announce(server, Announcement::kShutdown);
  REQUIRE(is_ready(running.get_future()));
  CHECK(testing::in_child([&] {
          client.reset();
          return 0;
        }) == 0);
  go_on.set_value();
}

TEST_CASE("scopes are opened for the next server when one was killed while it shut down") {
  FakeServer server;
  auto client = server.connect();
  auto process = process_of(server);
  announce(server, Announcement::kShutdown);
  CHECK_FALSE(client.expires(1h, "refused").release());
  process->end();
  auto scope = client.expires(1h, "scope");
  const TimerId timer = client.acquire(1h, "timer");
  client.start(1h);
  CHECK(slots_of(server.page()).size() == 3);
  CHECK(client.release(timer));
  CHECK(scope.release());
}

TEST_CASE("no scope is opened while the server drains or shuts down") {
  FakeServer server;
  const auto process = process_of(server);
  auto client = server.connect();
  auto before = client.expires(1h, "before");
  const TimerId timer = client.acquire(1h, "timer");
  client.start(1h);
  REQUIRE(slots_of(server.page()).size() == 3);
  for (const Announcement announced : {Announcement::kDraining, Announcement::kShutdown}) {
    announce(server, announced);
    auto scope = client.expires(1h, "new");
    CHECK_FALSE(scope.renew(2h));
    CHECK_FALSE(scope.release());
    ScopeOptions options;
    options.warn_after = 30min;
    auto warned = client.expires(1h, "warned", options);
    CHECK_FALSE(warned.release());
    const TimerId unwatched = client.acquire(1h, "new");
    CHECK_FALSE(unwatched);
    CHECK_FALSE(client.renew(unwatched, 1h));
    CHECK_FALSE(client.release(unwatched));
    CHECK(slots_of(server.page()).size() == 3);
    CHECK_THROWS_AS((void)client.expires(0s, "wrong"), InvalidArgument);
  }
  CHECK(before.renew(2h));
  CHECK(client.renew(timer, 2h));
  client.start(2h);
  CHECK(client.stop());
  CHECK(before.release());
  CHECK(client.release(timer));
  client.start(1h);
  CHECK_FALSE(client.stop());
  CHECK(slots_of(server.page()).empty());
  announce(server, Announcement::kNone);
  auto after = client.expires(1h, "after");
  CHECK(slots_of(server.page()).size() == 1);
}
