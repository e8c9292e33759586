// Threads and the slots of a page: each thread has its own, idle slots move to other threads, and a
// scope may outlive its thread.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filetimer/timer_client.hpp>
#include <random>
#include <set>
#include <thread>

#include "common/sanitizers.hpp"
#include "tests/timer_client/fake_server.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::FakeServer;
using testing::index_of;
using testing::slot_called;
using testing::slots_of;

namespace {

bool is_flagged(const SlotReading& slot) {
  return (slot.flags & slot_flag::kThreadEnded) != 0;
}

}  // namespace

TEST_CASE("each thread has its own slots, also for one name") {
  FakeServer server;
  auto client = server.connect();
  const PageLayout page = server.page();
  constexpr int kThreads = 4;
  std::barrier together(kThreads);
  std::vector<std::set<std::size_t>> used(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        auto scope = client.expires(1h, "step");
        together.arrive_and_wait();
        for (const auto& [index, slot] : slots_of(page)) {
          if (slot.tid == ::gettid()) {
            used[static_cast<std::size_t>(i)].insert(index);
          }
        }
        together.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  std::set<std::size_t> all;
  for (const auto& indexes : used) {
    CHECK(indexes.size() == 1);  // the same one in every round
    all.insert(indexes.begin(), indexes.end());
  }
  CHECK(all.size() == kThreads);
  CHECK(slots_of(page).empty());
}

TEST_CASE("the end of a thread inside a scope is noted, and the scope stays watched") {
  FakeServer server;
  auto client = server.connect();
  const std::string name = server.pipe().next().x_page;
  const PageLayout page = server.page();
  std::optional<TimerScope> moved;
  pid_t tid = 0;
  testing::in_thread([&] {
    tid = ::gettid();
    auto left_in_time = client.expires(1h, "in time");
    moved.emplace(client.expires(1h, "moved"));
    CHECK_FALSE(is_flagged(slot_called(page, "moved")));
  });
  CHECK(server.pipe().next().x_page == name);  // the server is woken, although the deadline is far
  CHECK(server.pipe().is_silent());
  const auto slot = slot_called(page, "moved");
  CHECK(is_flagged(slot));
  CHECK(slot.tid == tid);
  CHECK(moved->renew(2h));
  CHECK(slot_called(page, "moved").asked == 2h);
  CHECK(moved->release());
  CHECK(slots_of(page).empty());
  // The thread's slots are reused, without the flag.
  testing::in_thread([&] {
    auto one = client.expires(1h, "one");
    auto two = client.expires(1h, "two");
    CHECK_FALSE(is_flagged(slot_called(page, "one")));
    CHECK_FALSE(is_flagged(slot_called(page, "two")));
  });
  CHECK(slots_in_use(page) == 2);
  CHECK(server.pipe().is_silent());
}

TEST_CASE(
    "a thread that ends after a verdict gives the slot back when the server has acknowledged it") {
  FakeServer server;
  auto client = server.connect();
  const PageLayout page = server.page();
  testing::in_thread([&] {
    auto scope = client.expires(1ns, "late");
    CHECK(FakeServer::expire(page.slot(index_of(page, "late"))));
  });
  CHECK(page.slot(0).deadline == slot_word::kReleasedLate);
  testing::in_thread([&] {
    auto scope = client.expires(1h, "next");
    CHECK(index_of(page, "next") == 1);
  });
  FakeServer::finish(page.slot(0));
  testing::in_thread([&] {
    auto one = client.expires(1h, "one");
    auto two = client.expires(1h, "two");
    CHECK(slots_in_use(page) == 2);
  });
}

TEST_CASE("consecutive threads use the same slots") {
  FakeServer server;
  auto client = server.connect();
  for (int i = 0; i < 200; ++i) {
    testing::in_thread([&] {
      auto outer = client.expires(1h, "outer");
      auto inner = client.expires(1h, "inner " + std::to_string(i));
    });
  }
  CHECK(slots_in_use(server.page()) == 2);
}

TEST_CASE("a timer is released and renewed by another thread than its own") {
  FakeServer server;
  auto client = server.connect();
  const PageLayout page = server.page();
  auto scope = client.expires(1h, "scope");
  const TimerId timer = client.acquire(1h, "timer");
  testing::in_thread([&] {
    CHECK(client.renew(timer, 2h));
    CHECK(slot_called(page, "timer").asked == 2h);
    CHECK(client.release(timer));
    CHECK_FALSE(client.release(timer));
    auto moved = std::move(scope);
    CHECK(moved.renew(3h));
  });
  CHECK(slots_of(page).empty());
  auto again = client.expires(1h, "scope");
  CHECK(slot_called(page, "scope").tid == ::gettid());
}

TEST_CASE("of two threads that release one timer, one gets kReleased") {
  FakeServer server;
  auto client = server.connect();
  for (int i = 0; i < 2000; ++i) {
    const TimerId timer = client.acquire(kNoDeadline, "timer");
    std::atomic<int> released = 0;
    if (i % 100 == 0) {  // threads are expensive
      std::thread other([&] { released += client.release(timer) ? 1 : 0; });
      released += client.release(timer) ? 1 : 0;
      auto next = client.expires(kNoDeadline, "timer");
      other.join();
      CHECK(slots_of(server.page()).size() == 1);
    } else {
      released += client.release(timer) ? 1 : 0;
    }
    CHECK(released == 1);
  }
}

TEST_CASE("idle slots of a thread are available to other threads") {
  FakeServer server;
  auto client = server.connect();
  const PageLayout page = server.page();
  const auto open_all = [&] {
    std::vector<TimerScope> scopes;
    for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
      scopes.push_back(client.expires(1h, "s" + std::to_string(i)));
    }
    CHECK(slots_of(page).size() == kMaxScopesPerWorker);
    return scopes;
  };
  open_all().clear();  // now this thread has all slots
  CHECK(slots_in_use(page) == kMaxScopesPerWorker);
  testing::in_thread([&] {
    const auto scopes = open_all();
    testing::in_thread([&] { CHECK_THROWS_AS((void)client.expires(1h, "too many"), TimerError); });
  });
  auto scope = client.expires(1h, "mine again");
  CHECK(slot_called(page, "mine again").tid == ::gettid());
  CHECK(slots_of(page).size() == 1);
}

TEST_CASE("threads that take slots from each other all the time never share one") {
  FakeServer server;
  auto client = server.connect();
  const PageLayout page = server.page();
  // At most as many open scopes as slots, and more than the threads can keep idle.
  constexpr int kThreads = 12;
  constexpr int kAtOnce = 6;
  constexpr int kDeepest = 160;
  // With a sanitizer a round takes ten times as long, and each round finds a missing order.
  constexpr int kRounds = kIsAddressSanitized || kIsThreadSanitized ? 800 : 8000;
  // Not std::counting_semaphore: with libstdc++ 12 and 13 a release beside an acquire can be lost.
  sem_t turns{};
  REQUIRE(::sem_init(&turns, 0, kAtOnce) == 0);
  std::barrier together(kThreads);  // so that no thread gives back its slots by ending
  std::vector<std::thread> threads;
  std::atomic<int> mistakes = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::minstd_rand random(static_cast<unsigned>(i + 1));
      together.arrive_and_wait();
      for (int round = 0; round < kRounds; ++round) {
        ::sem_wait(&turns);
        std::vector<TimerScope> scopes;
        const int depth = static_cast<int>(random() % kDeepest) + 1;
        for (int j = 0; j < depth; ++j) {
          scopes.push_back(client.expires(1h, std::to_string((i + j) % 300)));
        }
        for (auto& scope : scopes) {
          mistakes += scope.release() ? 0 : 1;  // fails if two threads share the slot
        }
        ::sem_post(&turns);
      }
      together.arrive_and_wait();
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  ::sem_destroy(&turns);
  CHECK(mistakes == 0);
  CHECK(slots_of(page).empty());
  CHECK(slots_in_use(page) == kMaxScopesPerWorker);
}

TEST_CASE("a thread may use the pages of several runtime directories") {
  FakeServer first;
  FakeServer second;
  auto one = first.connect();
  auto other = second.connect();
  testing::in_thread([&] {
    for (int i = 0; i < 3; ++i) {
      auto a = one.expires(1h, "step");
      auto b = other.expires(1h, "step");
      CHECK(slots_of(first.page()).size() == 1);
      CHECK(slots_of(second.page()).size() == 1);
    }
  });
  CHECK(slots_in_use(first.page()) == 1);
  CHECK(slots_in_use(second.page()) == 1);
}
