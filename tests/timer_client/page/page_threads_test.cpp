// Threads and the slots of a page: each thread has its own, and a scope may outlive its thread.
// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filetimer/timer_client.hpp>
#include <thread>

#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;
using testing::FakeServer;
using testing::slots_of;

TEST_CASE_FIXTURE(Connected, "consecutive threads use the same slots") {
  for (int i = 0; i < 200; ++i) {
    testing::in_thread([&] {
      auto outer = client.expires(1h, "outer");
      auto inner = client.expires(1h, "inner " + std::to_string(i));
    });
  }
  CHECK(slots_in_use(server.page()) == 2);
  for (int i = 0; i < 200; ++i) {
    TimerScope left;
    testing::in_thread([&] { left = client.expires(1h, "left"); });
    CHECK(left.release());
  }
  CHECK(slots_in_use(server.page()) == 2);
}

TEST_CASE_FIXTURE(
    Connected,
    "a thread that is cancelled while it wakes the server ends, and its scope is released") {
  announce_scan(server.board());  // every deadline wakes the server
  const auto open_cancelled = [](void* its_client) -> void* {
    ::pthread_cancel(::pthread_self());
    const auto scope = static_cast<TimerClient*>(its_client)->expires(1h, "step");
    ::pthread_testcancel();
    return nullptr;
  };
  pthread_t thread{};
  REQUIRE(::pthread_create(&thread, nullptr, open_cancelled, &client) == 0);
  void* result = nullptr;
  REQUIRE(::pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
  CHECK(slots_in_use(server.page()) == 1);
  CHECK(server.slots().empty());
  CHECK(testing::in_child([&] {  // which makes a page of its own
          pthread_t childs{};
          const bool is_joined = ::pthread_create(&childs, nullptr, open_cancelled, &client) == 0 &&
                                 ::pthread_join(childs, &result) == 0;
          return is_joined && result == PTHREAD_CANCELED ? 0 : 1;
        }) == 0);
}

TEST_CASE("a thread that is cancelled before it closes a file ends at its next own call") {
  CHECK(testing::in_child([] {
          pthread_t thread{};
          void* result = nullptr;
          const auto close_cancelled = [](void*) -> void* {
            {
              const UniqueFd file(::open("/", O_RDONLY | O_CLOEXEC));
              ::pthread_cancel(::pthread_self());
            }
            ::pthread_testcancel();
            return nullptr;
          };
          ::pthread_create(&thread, nullptr, close_cancelled, nullptr);
          ::pthread_join(thread, &result);
          return result == PTHREAD_CANCELED ? 0 : 1;
        }) == 0);
}

TEST_CASE("a thread that has used the library of a plugin ends after the plugin was closed") {
  const FakeServer server;
  void* const plugin = ::dlopen(CLIENT_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(plugin != nullptr);
  const auto use = reinterpret_cast<void (*)(const char*)>(::dlsym(plugin, "use_client"));
  std::barrier both(2);
  std::thread thread([&] {
    use(server.dir().c_str());
    both.arrive_and_wait();  // it was used
    both.arrive_and_wait();  // it was closed
  });
  both.arrive_and_wait();
  CHECK(::dlclose(plugin) == 0);
  both.arrive_and_wait();
  thread.join();
}

TEST_CASE_FIXTURE(Connected, "of two threads that stop the job, one gets kReleased") {
  for (int i = 0; i < 20; ++i) {
    client.start(kNoDeadline);
    std::atomic<int> released = 0;
    std::thread other([&] { released += client.stop() ? 1 : 0; });
    released += client.stop() ? 1 : 0;
    auto next = client.expires(kNoDeadline, "job");
    other.join();
    CHECK(server.slots().size() == 1);
    CHECK(released == 1);
  }
}

TEST_CASE_FIXTURE(Connected, "threads that start the job at once leave one scope open") {
  const auto start_often = [&] {
    for (int i = 0; i < 2000; ++i) {
      client.start(1h);
    }
  };
  std::thread other(start_often);
  start_often();
  other.join();
  CHECK(server.slots().size() == 1);
  CHECK(client.stop());
  CHECK(server.slots().empty());
}

TEST_CASE_FIXTURE(Connected, "500 threads with ten names each have slots at the same time") {
  constexpr int kThreads = 500;
  std::barrier together(kThreads);  // so that no thread gives back its slots by ending
  std::vector<std::jthread> threads;
  std::atomic<int> mistakes = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int name = 0; name < 20; ++name) {
        auto scope = client.expires(1h, std::to_string(name % 10));
        mistakes += scope.release() ? 0 : 1;  // fails if it was not watched
      }
      together.arrive_and_wait();
    });
  }
  threads.clear();  // waits for their ends
  CHECK(mistakes == 0);
}

TEST_CASE("a thread may use the pages of several runtime directories") {
  FakeServer first;
  FakeServer second;
  auto one = first.connect();
  auto other = second.connect();
  for (int thread = 0; thread < 2; ++thread) {
    testing::in_thread([&] {
      for (int i = 0; i < 3; ++i) {
        auto a = one.expires(1h, "step");
        auto b = other.expires(1h, "step");
        CHECK(slots_of(first.page()).size() == 1);
        CHECK(slots_of(second.page()).size() == 1);
      }
    });
  }
  CHECK(slots_in_use(first.page()) == 1);
  CHECK(slots_in_use(second.page()) == 1);
}
