// SPDX-License-Identifier: MIT
#include "timer_server/kills/kill_targets.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "common/proc_files.hpp"
#include "tests/support/bound.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;

namespace {

char state_of(pid_t pid) {
  return read_stat(fmt::format("/proc/{}", pid)).value_or(ProcStat{}).state;
}

// A worker and its child, which ignores SIGTERM and outlives the worker.
struct WorkerWithChild {
  ~WorkerWithChild() { child.send_signal(SIGKILL); }

  SharedPids shared;
  Child worker{[this] {
    shared.pids[0] = fork_waiting([] {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::signal(SIGTERM, SIG_IGN);
    });
  }};
  Process child = std::move(*open_process(shared.pids[0]));
};

struct TargetStage {
  explicit TargetStage(MayBeForking forks = may_be_forking)
      : may(std::move(forks)),
        targets(std::make_shared<const Process>(process_of(family.worker)), KillMode::kTree, {},
                may) {}

  void stop() {
    targets.begin_stop();
    while (!targets.find_and_stop()) {
      targets.wait_until_stopped(Instant::now() + testing::kBound);
    }
  }

  WorkerWithChild family;
  const pid_t worker = family.worker.pid();
  const MayBeForking may;
  KillTargets targets;
};

}  // namespace

TEST_CASE("The targets of a tree are stopped together and resumed together") {
  TargetStage stage;
  stage.stop();
  CHECK(testing::wait_until(
      [&] { return state_of(stage.worker) == 'T' && state_of(stage.family.child.pid) == 'T'; }));
  // A signal that both ignore, or do not act on while they are stopped.
  CHECK(stage.targets.send(SIGWINCH).pids ==
        std::vector<pid_t>{stage.worker, stage.family.child.pid});
  CHECK(state_of(stage.worker) == 'T');
  stage.targets.resume();
  CHECK(testing::wait_until(
      [&] { return state_of(stage.worker) != 'T' && state_of(stage.family.child.pid) != 'T'; }));
}

TEST_CASE("Before a signal that may be handled only a target that may be forking is stopped") {
  pid_t forking = 0;
  TargetStage stage([&forking](pid_t pid) { return pid == forking; });
  forking = stage.family.child.pid;
  stage.targets.begin_stop(KillTargets::Stop::kForking);
  CHECK_FALSE(stage.targets.find_and_stop());
  CHECK(testing::wait_until([&] { return state_of(stage.family.child.pid) == 'T'; }));
  forking = 0;
  stage.targets.wait_until_stopped(Instant::now());
  CHECK(stage.targets.find_and_stop());
  CHECK(state_of(stage.worker) != 'T');
  CHECK(stage.targets.send(SIGWINCH).pids.size() == 2);
  stage.targets.resume();
}

TEST_CASE("The targets are complete when a look finds no new one and none may be forking") {
  bool is_forking = false;
  TargetStage stage([&is_forking](pid_t) { return is_forking; });
  stage.targets.begin_stop();
  CHECK_FALSE(stage.targets.find_and_stop());  // the child is new
  CHECK(stage.targets.find_and_stop());
  is_forking = true;
  stage.targets.begin_stop();
  CHECK_FALSE(stage.targets.find_and_stop());
  is_forking = false;
  stage.targets.wait_until_stopped(Instant::now());
  CHECK(stage.targets.find_and_stop());
}

TEST_CASE("Targets that sleep at each look and start others do not hold up the signal") {
  // The worker is the test itself: none is stopped.
  KillTargets targets(std::make_shared<const Process>(std::move(*open_process(::getpid()))),
                      KillMode::kTree, {}, [](pid_t) { return false; });
  targets.begin_stop(KillTargets::Stop::kForking);
  std::vector<std::unique_ptr<Child>> children;
  bool is_complete = false;
  for (int look = 0; look < 10 && !is_complete; ++look) {
    children.push_back(std::make_unique<Child>());
    is_complete = targets.find_and_stop();
  }
  CHECK(is_complete);
}

TEST_CASE("A target that starts while others are found is found, too") {
  for (const bool are_stopped : {false, true}) {
    CAPTURE(are_stopped);
    KillTargets targets(std::make_shared<const Process>(std::move(*open_process(::getpid()))),
                        KillMode::kTree, {},
                        [=](pid_t pid) { return are_stopped && pid != ::getpid(); });
    targets.begin_stop(KillTargets::Stop::kForking);
    const Child first;
    CHECK_FALSE(targets.find_and_stop());
    targets.wait_until_stopped(Instant{});
    const Child second;
    CHECK(targets.find_and_stop() != are_stopped);  // stopped ones are looked behind again
    CHECK(std::ranges::count(targets.others_alive(), second.pid()) == 1);
  }
}

TEST_CASE("The end of a target beside the worker is reported at most twice") {
  EventLoop loop;
  TargetStage stage;
  stage.stop();
  stage.targets.send(SIGKILL);
  int ends = 0;
  stage.targets.watch_ends(loop, [&ends] { ++ends; });
  while (ends == 0) {
    REQUIRE(loop.dispatch_one(10'000));
  }
  // Linux 6.9 reports that it was reaped as well.
  while (loop.dispatch_one(0)) {
    REQUIRE(ends <= 2);
  }
}

TEST_CASE("A thread in uninterruptible sleep may be in the middle of a fork") {
  // A parent in vfork() is in uninterruptible sleep until its child has exited.
  const Child parent(
      [] {},
      [] {
        const pid_t above = ::getpid();
        if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
          end_with(above);
          ::pause();
          ::_exit(0);
        }
      });
  REQUIRE(testing::wait_until([&] { return state_of(parent.pid()) == 'D'; }));
  CHECK(may_be_forking(parent.pid()));
  const Child asleep;
  // A sanitizer may have a thread of its own.
  CHECK(testing::wait_until([&] { return !may_be_forking(asleep.pid()); }));
}

TEST_CASE("A thread beside the main one may be in the middle of a fork") {
  bool may_be = false;
  std::thread beside([&may_be] {
    const std::string main_thread = fmt::format("/proc/self/task/{}", ::getpid());
    while (read_stat(main_thread).value_or(ProcStat{}).state != 'S') {
      ::sched_yield();
    }
    may_be = may_be_forking(::getpid());  // this thread runs
  });
  beside.join();
  CHECK(may_be);
}
