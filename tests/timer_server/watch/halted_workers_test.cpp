// Halted workers with processes whose state the test decides.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/halted_workers.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <map>

#include "tests/support/bound.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct HaltStage {
  HaltStage() { worker = &add_worker(4711); }
  Worker& add_worker(pid_t pid) {
    Process process;
    process.pid = pid;
    Worker& added = **workers.add(std::move(process));
    added.pipe = std::make_shared<PipePage>(folder.path(), pid, WorkerPage::Terms{});
    added.pages.push_back(added.pipe);
    ScopeTerms terms;
    terms.deadline = {5'000};
    REQUIRE(added.pipe->acquire("forward", 7, terms));
    return added;
  }
  // Waits until a side thread has found a halted worker.
  void deliver() {
    while (halted.next().is_never()) {
      pollfd news{side_threads.event_fd(), POLLIN, 0};
      REQUIRE(::poll(&news, 1, static_cast<int>(testing::kBound.count())) == 1);
      side_threads.deliver();
    }
  }
  bool should_defer() {
    return halted.should_defer(*worker, [] {
      ScopeView view;
      view.name = "forward";
      return std::optional(view);
    });
  }
  std::size_t records_of(std::string_view event) {
    testing::Records all = records_of_log(*log, folder);
    std::erase_if(all, [&](const testing::Record& record) { return !record.is(event); });
    return all.size();
  }

  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  SideThreads side_threads;
  Workers workers;
  Worker* worker = nullptr;
  std::map<pid_t, std::string> why;
  HaltedWorkers halted{{workers, records, *log, side_threads, [this](pid_t pid) {
                          const auto found = why.find(pid);
                          return found == why.end() ? std::string() : found->second;
                        }}};
};

}  // namespace

TEST_CASE("A worker that runs is not deferred") {
  HaltStage stage;
  CHECK_FALSE(stage.should_defer());
  CHECK(stage.halted.next().is_never());
  CHECK(stage.records_of("deferred") == 0);
}

TEST_CASE("A halted worker is deferred until it is resumed, with one record") {
  HaltStage stage;
  stage.why[4711] = "stopped";
  CHECK(stage.should_defer());
  CHECK(stage.should_defer());
  CHECK(stage.records_of("deferred") == 1);
  CHECK(stage.halted.deferred().values() == CountsByScope::Values{{"forward", 1}});
  const Instant look = stage.halted.next();
  CHECK(look <= Instant::now() + HaltedWorkers::kLookPeriod);
  stage.halted.advance(look);
  CHECK(stage.halted.next() == look + HaltedWorkers::kLookPeriod);
  CHECK_FALSE(stage.halted.take_resumed());
  stage.why.clear();
  CHECK(stage.should_defer());  // it was resumed just now
  stage.halted.advance(look + HaltedWorkers::kLookPeriod);
  CHECK(stage.halted.take_resumed());
  CHECK_FALSE(stage.halted.take_resumed());
  CHECK(stage.worker->resumed > Instant{});
  CHECK(stage.halted.next().is_never());
  CHECK_FALSE(stage.should_defer());
}

TEST_CASE("A worker that a sweep found halted is resumed at its next deadline, without a record") {
  HaltStage stage;
  stage.why[4711] = "frozen";
  stage.halted.sweep();
  CHECK_FALSE(stage.halted.next().is_never());
  stage.why.clear();
  CHECK(stage.should_defer());
  CHECK(stage.halted.take_resumed());
  CHECK_FALSE(stage.should_defer());
  CHECK(stage.records_of("deferred") == 0);
}

TEST_CASE("A sweep skips workers without scopes and workers that are being killed") {
  HaltStage stage;
  stage.why[4711] = "stopped";
  SUBCASE("without scopes") {
    stage.worker->pipe->release("forward");
  }
  SUBCASE("being killed") {
    stage.worker->dying = true;
  }
  stage.halted.sweep();
  CHECK(stage.halted.next().is_never());
}

TEST_CASE("A worker that has exited is not looked at again") {
  HaltStage stage;
  stage.why[4711] = "stopped";
  CHECK(stage.should_defer());
  SUBCASE("forgotten") {
    stage.halted.forget(4711);
  }
  SUBCASE("another process has its pid") {
    stage.workers.remove(*stage.worker);
    Process next;
    next.pid = 4711;
    stage.worker = *stage.workers.add(std::move(next));
  }
  stage.why.clear();
  stage.halted.advance(Instant::now() + 1s);
  CHECK_FALSE(stage.halted.take_resumed());
  CHECK(stage.halted.next().is_never());
}

TEST_CASE("Sweeps begin no further look while a side thread looks at many workers") {
  HaltStage stage;
  for (pid_t pid = 1; pid <= static_cast<pid_t>(HaltedWorkers::kFewWorkers); ++pid) {
    stage.add_worker(pid);
  }
  stage.why[4711] = "stopped";
  {
    const BusyThreads busy(stage.side_threads, SideThreads::Lane::kQuick);
    const std::size_t before = stage.side_threads.waiting(SideThreads::Lane::kQuick);
    for (int i = 0; i < 10; ++i) {
      stage.halted.sweep();
    }
    CHECK(stage.side_threads.waiting(SideThreads::Lane::kQuick) <= before + 1);
  }
  stage.deliver();
  stage.halted.forget(4711);
  stage.halted.advance(stage.halted.next());
  REQUIRE(stage.halted.next().is_never());
  stage.halted.sweep();  // it looks again
  stage.deliver();
  CHECK_FALSE(stage.halted.next().is_never());
}
