// SPDX-License-Identifier: MIT
#include "timer_server/timer_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <random>

#include "common/limits.hpp"

using namespace filetimer;

namespace {

// A worker without a process behind it: the table never looks at one.
Process fake(pid_t pid) {
  Process process;
  process.pid = pid;
  return process;
}

ScopeTerms due_at(std::int64_t ns) {
  ScopeTerms terms;
  terms.deadline = {ns};
  return terms;
}

ScopeTerms opened_at(std::int64_t acquired, std::int64_t deadline, std::uint32_t soft_ms = 0) {
  ScopeTerms terms;
  terms.acquired = {acquired};
  terms.deadline = {deadline};
  terms.asked = terms.deadline - terms.acquired;
  terms.soft_ms = soft_ms;
  return terms;
}

constexpr std::uint32_t kHalf = 1U << 31;

std::vector<std::string> soft_names(TimerTable& table, Instant now) {
  std::vector<std::string> names;
  for (const auto& due : table.take_soft_due(now)) {
    names.emplace_back(due.scope->name());
  }
  return names;
}

std::vector<std::string> names(const std::vector<Scope*>& scopes) {
  std::vector<std::string> names;
  for (const Scope* scope : scopes) {
    names.emplace_back(scope->name());
  }
  return names;
}

}  // namespace

TEST_CASE("A scope is due from its deadline on, not a nanosecond before") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "a", "a", due_at(1000));
  CHECK(table.due({999}).empty());
  CHECK(names(table.due({1000})) == std::vector<std::string>{"a"});
}

TEST_CASE("An acquire of an open identity replaces it and one release ends it") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "a", "a", due_at(1000));
  table.acquire(worker, "a", "a", due_at(5000));
  CHECK(table.scope_count() == 1);
  CHECK(table.due({1000}).empty());
  CHECK(table.next_deadline() == Instant{5000});
  table.close(*table.find_scope(worker, "a"));
  CHECK(table.scope_count() == 0);
  CHECK(table.next_deadline().is_never());
}

TEST_CASE("Scopes that never expire are never due") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  ScopeTerms endless;
  endless.deadline = Instant::never();
  table.acquire(worker, "a", "a", endless);
  CHECK(table.due({Instant::never().ns - 1}).empty());
}

TEST_CASE("What is due comes in the order of deadlines over all workers") {
  TimerTable table;
  Worker& first = **table.add_worker(fake(10));
  Worker& second = **table.add_worker(fake(11));
  table.acquire(first, "late", "late", due_at(300));
  table.acquire(second, "early", "early", due_at(100));
  table.acquire(first, "middle", "middle", due_at(200));
  CHECK(names(table.due({300})) == std::vector<std::string>{"early", "middle", "late"});
}

TEST_CASE("A worker that is removed takes its timers with it") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "a", "a", due_at(1));
  table.acquire(worker, "b", "b", due_at(2));
  CHECK(table.find_worker(10) == &worker);
  table.remove_worker(worker);
  CHECK(table.find_worker(10) == nullptr);
  CHECK(table.due({100}).empty());
}

TEST_CASE("The name shown is the beginning of the identity") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "forward#2", "forward", due_at(1));
  CHECK(table.find_scope(worker, "forward") == nullptr);
  REQUIRE(table.find_scope(worker, "forward#2") != nullptr);
  CHECK(table.find_scope(worker, "forward#2")->name() == "forward");
}

TEST_CASE("A worker that opens too many scopes is refused and loses none") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  for (std::size_t i = 0; i < kMaxScopesPerWorker; ++i) {
    REQUIRE(table.acquire(worker, fmt::format("s{}", i), fmt::format("s{}", i), due_at(1000)));
  }
  CHECK(!table.acquire(worker, "one more", "one more", due_at(1)));
  CHECK(table.acquire(worker, "s7", "s7", due_at(2000)));  // a renewal needs no room
  CHECK(table.scope_count() == kMaxScopesPerWorker);
}

TEST_CASE("A scope is to be warned about from its soft deadline on, once") {
  TimerTable table(kHalf);
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "half", "half", opened_at(1'000, 9'000));
  table.acquire(worker, "own", "own", opened_at(1'000, 9'000'000, 2));
  ScopeTerms endless = opened_at(1'000, 9'000, 1);
  endless.deadline = Instant::never();
  table.acquire(worker, "endless", "endless", endless);
  CHECK(table.next_deadline() == Instant{5'000});
  CHECK(table.take_soft_due({4'999}).empty());
  const auto due = table.take_soft_due({5'000});
  REQUIRE(due.size() == 1);
  CHECK(due[0].scope->name() == "half");
  CHECK(due[0].soft == Instant{5'000});
  CHECK(table.take_soft_due({8'999}).empty());
  CHECK(table.due({8'999}).empty());
  CHECK(table.next_deadline() == Instant{9'000});
  CHECK(names(table.due({9'000})) == std::vector<std::string>{"half"});
  table.close(*table.find_scope(worker, "half"));
  CHECK(soft_names(table, {3'000'000}) == std::vector<std::string>{"endless", "own"});
  CHECK(table.next_deadline() == Instant{9'000'000});
}

TEST_CASE("A scope behind both its deadlines is due and not to be warned about") {
  TimerTable table(kHalf);
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "long", "long", opened_at(0, 3'000));
  table.acquire(worker, "short", "short", opened_at(1'600, 2'000));
  CHECK(names(table.due({3'000})) == std::vector<std::string>{"short", "long"});
  CHECK(table.take_soft_due({3'000}).empty());
}

TEST_CASE("A renewal is warned about again, what is only said again is not") {
  constexpr std::int64_t kMs = 1'000'000;
  TimerTable table(kHalf);
  Worker& worker = **table.add_worker(fake(10));
  table.acquire(worker, "a", "a", opened_at(0, 1'000 * kMs));
  CHECK(soft_names(table, {600 * kMs}).size() == 1);
  table.acquire(worker, "a", "a", opened_at(kMs / 2, 1'000 * kMs + kMs / 2));
  CHECK(table.take_soft_due({700 * kMs}).empty());
  CHECK(table.next_deadline() == Instant{1'000 * kMs + kMs / 2});
  table.acquire(worker, "a", "a", opened_at(700 * kMs, 1'700 * kMs));
  CHECK(table.next_deadline() == Instant{1'200 * kMs});
  CHECK(soft_names(table, {1'200 * kMs}).size() == 1);
  // The same deadline, but another timeout: a renewal.
  table.acquire(worker, "a", "a", opened_at(1'300 * kMs, 1'700 * kMs));
  CHECK(soft_names(table, {1'500 * kMs}).size() == 1);
}

TEST_CASE("A scope that was warned about and is postponed is not warned about again") {
  TimerTable table(kHalf);
  Worker& worker = **table.add_worker(fake(10));
  Scope& scope = **table.acquire(worker, "a", "a", opened_at(0, 1'000));
  CHECK(soft_names(table, {500}).size() == 1);
  table.postpone(scope, {4'000});
  CHECK(table.next_deadline() == Instant{4'000});
  CHECK(table.take_soft_due({3'999}).empty());
  table.postpone(scope, Instant::never());
  CHECK(table.take_soft_due({1'000'000}).empty());
}

TEST_CASE("A scope that is postponed before its soft deadline is warned about once") {
  TimerTable table(kHalf);
  Worker& worker = **table.add_worker(fake(10));
  Scope& scope = **table.acquire(worker, "a", "a", opened_at(0, 1'000));
  table.postpone(scope, {4'000});
  CHECK(table.next_deadline() == Instant{2'000});
  CHECK(soft_names(table, {2'000}).size() == 1);
  CHECK(table.take_soft_due({3'999}).empty());
}

TEST_CASE("A renewal makes a scope the youngest of its worker") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  for (const char* id : {"a", "b", "c", "a"}) {
    table.acquire(worker, id, id, due_at(1000));
  }
  std::string by_age;
  for (const Scope& scope : worker.by_age) {
    by_age += scope.name();
  }
  CHECK(by_age == "bca");
}

TEST_CASE("A renewed scope may be given time again") {
  TimerTable table;
  Worker& worker = **table.add_worker(fake(10));
  Scope& scope = **table.acquire(worker, "a", "a", due_at(1000));
  scope.terms.is_extended = true;
  table.postpone(scope, {2000});
  CHECK(bool{scope.terms.is_extended});
  table.acquire(worker, "a", "a", due_at(5000));
  CHECK_FALSE(bool{table.find_scope(worker, "a")->terms.is_extended});
}

TEST_CASE("A grace is kept in whole milliseconds, rounded up") {
  using namespace std::chrono_literals;
  CHECK_FALSE(grace_of(std::nullopt));
  CHECK(*grace_of(0ns) == 0ms);
  CHECK(*grace_of(1500us) == 2ms);
  CHECK(grace_of(kMaxTimeout)->count() == kLongestGraceMs);
}

TEST_CASE("A random run agrees with a plain model, with and without warnings") {
  std::uint32_t warn_at = 0;
  SUBCASE("without") {}
  SUBCASE("with") {
    warn_at = kHalf;
  }
  TimerTable table(warn_at);
  std::map<std::pair<pid_t, std::string>, std::int64_t> model;
  std::mt19937 random(7);
  for (pid_t pid = 2; pid < 12; ++pid) {
    REQUIRE(table.add_worker(fake(pid)));
  }
  for (int step = 0; step < 20'000; ++step) {
    const pid_t pid = 2 + static_cast<pid_t>(random() % 10);
    const std::string id = fmt::format("s{}", random() % 20);
    Worker& worker = *table.find_worker(pid);
    const auto deadline = static_cast<std::int64_t>(random() % 100'000);
    if (random() % 2 == 0) {
      REQUIRE(table.acquire(worker, id, id, due_at(deadline)));
      model[{pid, id}] = deadline;
    } else if (Scope* const open = table.find_scope(worker, id)) {
      table.close(*open);
      CHECK(model.erase({pid, id}) == 1);
    } else {
      CHECK(model.count({pid, id}) == 0);
    }
    if (step % 100 == 0) {
      const auto now = static_cast<std::int64_t>(random() % 100'000);
      const auto expected = std::count_if(model.begin(), model.end(),
                                          [&](const auto& entry) { return entry.second <= now; });
      CHECK(table.due({now}).size() == static_cast<std::size_t>(expected));
      for (const auto& due : table.take_soft_due({now})) {
        CHECK(due.soft <= Instant{now});
        CHECK(due.scope->terms.deadline > Instant{now});
        CHECK(due.soft == Instant{(due.scope->terms.deadline.ns + 1) / 2});
      }
      CHECK(table.take_soft_due({now}).empty());
      CHECK(table.scope_count() == model.size());
    }
  }
}
