// SPDX-License-Identifier: MIT
#include "timer_server/watch/lost_time.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "common/board.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/core_stage.hpp"
#include "tests/timer_server/process_of.hpp"
#include "timer_server/watch/deadline_scan.hpp"
#include "timer_server/watch/registry.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// Clocks at `now`, with `worked` of CPU time.
constexpr MissedTime::Clocks at(Duration now, Duration worked = 0s) {
  return {Instant{} + now, worked};
}
constexpr Instant plan(Duration time) {
  return Instant{} + time;
}

}  // namespace

TEST_CASE("A wake-up in time, early for a request, or without a plan misses no time") {
  MissedTime missed_time;
  CHECK(missed_time.on_wake(at(0s)) == 0s);
  missed_time.on_sleep(plan(10s), 1s, at(0s));
  CHECK(missed_time.on_wake(at(3s)) == 0s);
  missed_time.on_sleep(plan(10s), 1s, at(3s));
  CHECK(missed_time.on_wake(at(10s)) == 0s);
  missed_time.on_sleep(Instant::never(), 1s, at(10s));
  CHECK(missed_time.on_wake(at(3600s)) == 0s);
}

TEST_CASE("A wake-up that is later than is tolerated is missed time, reported once") {
  for (const Duration tolerated : {1000ms, 250ms}) {
    MissedTime missed_time;
    missed_time.on_wake(at(0s));
    missed_time.on_sleep(plan(10s), tolerated, at(0s));
    CHECK(missed_time.on_wake(at(10s + tolerated)) == 0s);  // a busy machine
    missed_time.on_sleep(plan(20s), tolerated, at(10s + tolerated));
    CHECK(missed_time.on_wake(at(20s + tolerated + 1ms)) == tolerated + 1ms);
    CHECK(missed_time.on_wake(at(25s)) == 0s);
  }
}

TEST_CASE("The server's own work is not missed time, and a stop in the middle of it is") {
  MissedTime missed_time;
  missed_time.on_wake(at(9s));
  // An iteration of six seconds of work, five of them after the planned time.
  missed_time.on_sleep(plan(10s), 1s, at(15s, 6s));
  CHECK(missed_time.on_wake(at(15s, 6s)) == 0s);
  MissedTime stopped;
  stopped.on_wake(at(9s, 1s));
  stopped.on_sleep(plan(10s), 1s, at(15s, 1500ms));
  CHECK(stopped.on_wake(at(15s, 1500ms)) == 5500ms);
  stopped.on_sleep(plan(20s), 1s, at(15s, 1500ms));
  CHECK(stopped.on_wake(at(20s, 1500ms)) == 0s);
}

TEST_CASE("What was given back after a wake-up is not missed a second time") {
  MissedTime missed_time;
  missed_time.on_wake(at(0s));
  missed_time.on_sleep(plan(10s), 1s, at(0s));
  CHECK(missed_time.on_wake(at(15s)) == 5s);
  missed_time.on_given_back(at(18s));  // it was stopped once more, right after the wake-up
  missed_time.on_sleep(plan(25s), 1s, at(20s));
  CHECK(missed_time.on_wake(at(25s)) == 2s);  // and again after that
}

TEST_CASE("The clocks advance together, and CPU time is counted") {
  const MissedTime::Clocks before = MissedTime::Clocks::read();
  MissedTime::Clocks after = before;
  while (after.worked - before.worked < 5ms) {
    after = MissedTime::Clocks::read();
  }
  CHECK(after.now - before.now >= after.worked - before.worked - 1ms);  // two clocks
}

TEST_CASE("While the reads of facts hang, many workers are still looked at") {
  std::vector<std::unique_ptr<Child>> children;
  for (std::size_t i = 0; i <= HaltedWorkers::kFewWorkers; ++i) {
    children.push_back(std::make_unique<Child>());
  }
  CoreStage stage;
  Core& core = stage.core;
  for (const auto& child : children) {
    CoreStage::acquire(stage.add_worker(process_of(*child)), "s", SlotReading{});
  }
  const pid_t stopped = children.front()->pid();
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(stopped), &info, WSTOPPED | WNOWAIT) == 0);
  const BusyThreads hung(core.side_threads, SideThreads::Lane::kFacts);
  HaltedWorkers halted(core);
  halted.look_at_all(Instant::now());
  CHECK(is_readable_within(core.side_threads.event_fd(), testing::kBound));
  core.side_threads.deliver();
  CHECK_FALSE(halted.next().is_never());
  // The first look that finds it running again gives the time back, from its start at the most.
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  REQUIRE(testing::wait_until([&] { return why_halted(stopped).empty(); }));
  halted.advance(halted.next());
  CHECK(core.wants_scan);
  const Worker& resumed = *core.workers.find(stopped);
  const Instant end = resumed.lost.end();
  CHECK(resumed.lost.extended(end, {.started = Instant{}}) - end <=
        Instant::now() - resumed.process->started());
}

TEST_CASE("The reads of facts and the evidence of kills do not wait for each other") {
  const Child child;
  CoreStage stage;
  SideThreads& threads = stage.core.side_threads;
  const BusyThreads busy(threads, SideThreads::Lane::kQuick);
  WatchRegistry registry(stage.core, [](Worker&) {}, {});
  const auto worker = registry.worker_for(process_of(child));
  REQUIRE(worker.has_value());
  CHECK(testing::wait_until([&] {
    threads.deliver();
    return (*worker)->facts->are_known;
  }));
}

TEST_CASE("A scan says when it must be woken, and names the workers by their deadlines") {
  std::vector<std::unique_ptr<Child>> children;
  CoreStage stage;
  HaltedWorkers halted(stage.core);
  DeadlineScan scan(stage.core, halted);
  const Instant now = Instant::now();
  CHECK(scan.run(now, now + 10s).due.empty());
  const std::string board = testing::read_file(stage.folder.path("server"));
  REQUIRE(board.size() == kBoardBytes);
  Instant next_wake;
  std::memcpy(&next_wake.ns, board.data() + offsetof(Board, next_wake), sizeof next_wake.ns);
  CHECK(next_wake == now + 4 * (10s + Looks::kMostTolerated));

  for (const Duration overdue : {3s, 1s, 5s, 2s, 4s}) {
    children.push_back(std::make_unique<Child>());
    SlotReading terms;
    terms.acquired = now + -overdue;
    terms.deadline = terms.acquired;
    CoreStage::acquire(stage.add_worker(process_of(*children.back())), "s", terms);
  }
  const DeadlineScan::Found found = scan.run(now, now + 10s);
  CHECK(found.due.size() == children.size());
  CHECK(std::ranges::is_sorted(found.due, {}, [](const DeadlineScan::DueWorker& due) {
    return due.scopes.front().deadline;
  }));
}
