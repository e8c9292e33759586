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

TEST_CASE("A random run agrees with a plain model") {
  TimerTable table;
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
      CHECK(table.scope_count() == model.size());
    }
  }
}
