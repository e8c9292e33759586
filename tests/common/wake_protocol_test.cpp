// The wake protocol in every order of its steps. Each step runs in its own thread, so that
// ThreadSanitizer checks it as well.
// SPDX-License-Identifier: MIT
#include "common/wake_protocol.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "common/due.hpp"
#include "common/page_reader.hpp"
#include "tests/support/skip.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kDeadline = 1000;

std::size_t usable_processors() {
  cpu_set_t usable;
  return ::sched_getaffinity(0, sizeof usable, &usable) == 0
             ? static_cast<std::size_t>(CPU_COUNT(&usable))
             : 1;
}

// Binds the calling thread to one of the processors that it may use, the first for 0. Two threads
// on two processors run at the same time even if other processes use the processors.
void stay_on_processor(std::size_t number) {
  cpu_set_t usable;
  REQUIRE(::sched_getaffinity(0, sizeof usable, &usable) == 0);
  for (std::size_t i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &usable) && number-- == 0) {
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(i, &only);
      ::sched_setaffinity(0, sizeof only, &only);
    }
  }
}

// Runs both functions to their ends, each on its own processor.
void run_side_by_side(const std::function<void()>& worker, const std::function<void()>& server) {
  std::thread first([&] {
    stay_on_processor(0);
    worker();
  });
  std::thread second([&] {
    stay_on_processor(1);
    server();
  });
  first.join();
  second.join();
}

struct Meeting {
  std::unique_ptr<Slot> slot = std::make_unique<Slot>();
  std::unique_ptr<Board> board = std::make_unique<Board>();
};

using Steps = std::vector<std::function<void()>>;

// Two threads that take turns in this order: 'w' is the worker's next step, 's' the server's.
class Turns {
 public:
  explicit Turns(std::string order) : order_(std::move(order)) {}

  void run(const Steps& worker, const Steps& server) {
    std::thread other([&] { take_part('s', server); });
    take_part('w', worker);
    other.join();
  }

 private:
  void take_part(char self, const Steps& steps) {
    for (const auto& step : steps) {
      {
        std::unique_lock held(mutex_);
        turned_.wait(held, [&] { return order_.at(next_) == self; });
      }
      // Without the lock, so that only the protocol orders the steps of the two threads.
      step();
      const std::scoped_lock held(mutex_);
      ++next_;
      turned_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable turned_;
  std::string order_;
  std::size_t next_ = 0;
};

// Returns all orders of so many steps of the worker and of the server.
std::vector<std::string> all_orders(std::size_t worker, std::size_t server) {
  std::string order = std::string(server, 's') + std::string(worker, 'w');
  std::vector<std::string> orders;
  do {
    orders.push_back(order + '.');  // the end: neither thread has a turn
  } while (std::ranges::next_permutation(order).found);
  return orders;
}

// A worker that opens, renews and releases scopes, and a server that judges each open scope that it
// finds. Each scope and each renewal has a word of its own, and check() compares by words: the
// server has judged exactly the scopes that the worker could not release or renew.
struct Race {
  static constexpr std::size_t kSlots = 64;
  static constexpr std::size_t kEnough = 100'000;     // of releases and of verdicts
  static constexpr std::size_t kMost = 10 * kEnough;  // of verdicts

  void work() {
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = (*slots)[i];
      if (own[i] == 0) {
        if (slot.deadline == slot_word::kFree) {
          set_deadline(slot, own[i] = next++);
        }
      } else if (own[i] % 2 == 0 && try_renew(slot, own[i], next)) {
        own[i] = next++;
      } else if (own[i] % 2 != 0 && try_release(slot, own[i])) {
        own[i] = 0;
        ++released;
      } else {
        lost.push_back(own[i]);
        own[i] = 0;
        release_late(slot);
      }
    }
  }

  void judge() {
    for (Slot& slot : *slots) {
      const std::int64_t word = read_deadline(slot);
      if (slot_word::is_open(word) && try_expire(slot, word)) {
        judged.push_back(word);
        finish_verdict(slot, word);
      }
    }
    judged_count = judged.size();
  }

  // One second is enough, unless the worker or the server got no processor in it.
  bool is_over() const {
    const std::size_t rarer = std::min<std::size_t>(released, judged_count);
    const Instant now = Instant::now();
    return rarer >= kEnough || judged_count >= kMost || now > begin + 20s ||
           (rarer > 0 && now > begin + 1s);
  }

  void check() {
    std::size_t stuck = 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      const std::int64_t word = (*slots)[i].deadline;
      if (own[i] == 0) {
        stuck += word == slot_word::kFree ? 0U : 1U;
      } else if (word != own[i]) {
        lost.push_back(own[i]);  // judged last
      }
    }
    CHECK(released > 0);
    CHECK(!judged.empty());
    CHECK(stuck == 0);
    std::ranges::sort(judged);
    std::ranges::sort(lost);
    CHECK(judged == lost);
  }

  const Instant begin = Instant::now();
  std::unique_ptr<std::array<Slot, kSlots>> slots = std::make_unique<std::array<Slot, kSlots>>();
  // Used by the worker.
  std::array<std::int64_t, kSlots> own{};  // the word of the scope that is open in each; 0: none
  std::int64_t next = 1;
  std::vector<std::int64_t> lost;
  std::atomic<std::size_t> released = 0;
  // Used by the server.
  std::vector<std::int64_t> judged;
  std::atomic<std::size_t> judged_count = 0;
};

}  // namespace

TEST_CASE("in every order the server is woken for a deadline, or reads in time by itself") {
  // The scope is opened at 0 and due at 2 ms. Its soft deadline, if there is one, is at 1 ms: its
  // own, or half of the timeout by a server that has just started.
  constexpr std::int64_t kSoft = 1'000'000;
  constexpr std::int64_t kDue = 2 * kSoft;
  struct Scope {
    std::int64_t first;  // of the deadlines
    std::uint32_t own_ms;
    std::uint32_t warn_at;
  };
  for (const Scope& scope : {Scope{kDue, 0, 0}, Scope{kSoft, 1, 0}, Scope{kSoft, 0, 1U << 31}}) {
    const std::int64_t first = scope.first;
    // The deadline of another slot of the page, and the result of an earlier server's last reading.
    for (const std::int64_t others : {kWakeAlways, first - 1, first, first + 1, kDue, kDue + 1}) {
      for (const std::int64_t before : {kWakeAlways, first - 1, first, first + 1}) {
        for (const std::string& order : all_orders(2, 4)) {
          CAPTURE(first);
          CAPTURE(scope.own_ms);
          CAPTURE(order);
          CAPTURE(others);
          CAPTURE(before);
          Meeting meet;
          meet.board->next_wake = before;
          bool wakes = false;
          std::int64_t found = kWakeAlways;
          Turns(order).run(
              {[&] {
                 begin_writing_slot();
                 meet.slot->soft_ms.store(scope.own_ms, std::memory_order_relaxed);
                 set_deadline(*meet.slot, kDue);
               },
               [&] { wakes = must_wake(*meet.board, *meet.slot, kDue); }},
              {[&] { meet.board->warn_at.store(scope.warn_at, std::memory_order_relaxed); },
               [&] { announce_scan(*meet.board); },
               [&] {
                 const std::int64_t word = read_deadline(*meet.slot);
                 if (word != slot_word::kFree) {
                   const auto soft = soft_time_of(*meet.slot, word, {word}, scope.warn_at);
                   found = std::min(word, soft.ns);
                 }
               },
               [&] { announce_next_scan(*meet.board, std::min(others, found)); }});
          CHECK((wakes || meet.board->next_wake <= first));
          // A server that reads at or before the deadline is not woken.
          if (order.starts_with("ww") && scope.warn_at == 0) {
            CHECK(wakes == (first < before));
          }
          if (order.starts_with("ssssw")) {
            CHECK(wakes == (others > first));
          }
        }
      }
    }
  }
}

TEST_CASE("no server is woken after it has stopped, or for a scope without any deadline") {
  constexpr std::int64_t kEndless = slot_word::kNoDeadline + 7;
  Meeting meet;
  meet.slot->started = 7;
  meet.board->warn_at = 1U << 31;
  meet.board->next_wake = kWakeAlways;
  CHECK_FALSE(must_wake(*meet.board, *meet.slot, kEndless));
  meet.slot->soft_ms = 1;
  CHECK(must_wake(*meet.board, *meet.slot, kEndless));
  meet.board->next_wake = 1'000'007;
  CHECK_FALSE(must_wake(*meet.board, *meet.slot, kEndless));
  meet.board->next_wake = kWakeNever;
  CHECK_FALSE(must_wake(*meet.board, *meet.slot, kEndless));
  Meeting other;
  other.board->next_wake = kWakeAlways;
  CHECK_FALSE(must_wake(*other.board, *other.slot, slot_word::kNoDeadline));
  CHECK(must_wake(*other.board, *other.slot, slot_word::kNoDeadline - 1));
  other.board->next_wake = kWakeNever;
  CHECK_FALSE(must_wake(*other.board, *other.slot, 1));
  other.board->next_wake = kDeadline;
  CHECK(must_wake_at(*other.board, kDeadline - 1));  // for an idle timeout
  CHECK_FALSE(must_wake_at(*other.board, kDeadline));
}

TEST_CASE("two threads that run free never both miss each other") {
  // Both threads begin many rounds at the same time. Some rounds fall into the few nanoseconds in
  // which a store is not yet visible to the other processor.
  FILETIMER_SKIP_IF(usable_processors() < 2,
                    "a store is seen late by another processor only, and this process may use one");
  constexpr int kRounds = 200'000;
  const Instant bound = Instant::now() + 2s;  // other processes may want the processors
  Meeting meet;
  std::atomic<int> round = 0;
  std::atomic<int> ready = 0;
  std::atomic<bool> is_over = false;
  std::int64_t found = 0;
  int missed = 0;
  const auto begin_round = [&](int number) {
    if (ready.fetch_add(1) % 2 == 1) {
      round = number;
    }
    while (round < number) {
    }
  };
  const auto worker = [&] {
    for (int i = 1; !is_over; i += 2) {
      meet.slot->deadline.store(slot_word::kFree, std::memory_order_relaxed);
      begin_round(i);
      set_deadline(*meet.slot, kDeadline);
      const bool wakes = must_wake(*meet.board, *meet.slot, kDeadline);
      is_over = i >= 2 * kRounds || Instant::now() >= bound;
      begin_round(i + 1);
      missed += wakes || found == kDeadline ? 0 : 1;
    }
  };
  const auto server = [&] {
    for (int i = 1; !is_over; i += 2) {
      meet.board->next_wake.store(kDeadline - 1, std::memory_order_relaxed);  // before it looked
      begin_round(i);
      announce_scan(*meet.board);
      found = read_deadline(*meet.slot);
      announce_next_scan(*meet.board, found == slot_word::kFree ? kWakeAlways : found);
      begin_round(i + 1);
    }
  };
  run_side_by_side(worker, server);
  CHECK(missed == 0);
}

TEST_CASE("of a worker and a server that run free exactly one ends each scope") {
  FILETIMER_SKIP_IF(usable_processors() < 2,
                    "two threads run at once on two processors only, and this process may use one");
  Race race;
  std::atomic<bool> is_over = false;
  const auto worker = [&] {
    while (!is_over) {
      race.work();
      is_over = race.is_over();
    }
  };
  const auto server = [&] {
    while (!is_over) {
      race.judge();
    }
  };
  run_side_by_side(worker, server);
  race.check();
}

TEST_CASE(
    "a late release frees the slot in every order with the next server, which knows no verdict") {
  for (const std::string& order : all_orders(2, 2)) {
    CAPTURE(order);
    Meeting meet;
    set_deadline(*meet.slot, kDeadline);
    CHECK(try_expire(*meet.slot, kDeadline));  // by a server that was killed before its record
    bool was_found = false;
    bool released = false;
    Turns(order).run({[&] { released = try_release(*meet.slot, kDeadline); },
                      [&] {
                        if (!released) {
                          release_late(*meet.slot);
                        }
                      }},
                     {[&] { was_found = slot_word::is_expired(read_deadline(*meet.slot)); },
                      [&] {
                        if (was_found) {
                          take_verdict_back(*meet.slot, kDeadline);
                        } else {
                          acknowledge_late_release(*meet.slot);
                        }
                      }});
    CHECK(meet.slot->deadline == slot_word::kFree);
  }
}

TEST_CASE("a late release of a slot that is free, or whose kill is over, leaves it free") {
  for (const std::int64_t word : {slot_word::kFree, slot_word::kJudged}) {
    Meeting meet;
    meet.slot->deadline = word;
    CHECK(release_late(*meet.slot) == slot_word::kFree);
    CHECK(meet.slot->deadline == slot_word::kFree);
  }
}
