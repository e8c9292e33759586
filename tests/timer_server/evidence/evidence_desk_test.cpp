// Collects evidence of real processes: what it contains, in which order it is collected, and which
// reasons it gives for what is missing.
// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence_desk.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <future>
#include <new>

#include "tests/support/files.hpp"
#include "tests/support/kernel_stacks.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;
using namespace std::chrono_literals;
using testing::missing_but_kernel_stacks;

namespace {

struct CollectionStage {
  EvidenceOrder start(EvidenceLevel level, Instant until, std::optional<PythonDump> python = {},
                      EvidenceFor use = EvidenceFor::kSignal) {
    return desk.collect({.worker = process,
                         .level = level,
                         .use = use,
                         .until = until,
                         .python = std::move(python)},
                        Instant::now(), [this](Evidence evidence, bool is_complete) {
                          done.push_back(std::move(evidence));
                          complete += is_complete ? 1 : 0;
                        });
  }
  // Returns the evidence, with the stacks of the worker. On a busy machine a thread may not stop
  // within the helper's time; then the evidence is collected again.
  Evidence collect(EvidenceLevel level) {
    for (const Instant bound = Instant::now() + 100s;;) {
      done.clear();
      const auto order = start(level, Instant::now() + 20s);
      deliver_until_done(1);
      if (Instant::now() > bound || done[0].missing.find("it did not stop") == std::string::npos) {
        return done[0];
      }
    }
  }
  void deliver_once() {
    REQUIRE(is_readable_within(side_threads.event_fd(), testing::kBound));
    side_threads.deliver();
    desk.advance(begun);
  }
  void deliver_until_done(std::size_t count) {
    while (done.size() < count) {
      deliver_once();
    }
  }

  explicit CollectionStage(const std::function<void()>& worker_does_first = [] {})
      : worker(worker_does_first) {
    worker.wait_until_asleep();
  }

  Child worker;
  std::shared_ptr<const Process> process = std::make_shared<const Process>(process_of(worker));
  SideThreads side_threads;
  EvidenceDesk desk{side_threads};
  const Instant begun = Instant::now();  // no order's time is up
  std::vector<Evidence> done;
  int complete = 0;  // of them
};

}  // namespace

TEST_CASE("At level proc there is a CPU sample and no stack of user space") {
  CollectionStage stage;
  const Evidence evidence = stage.collect(EvidenceLevel::kProc);
  REQUIRE(!evidence.threads.empty());
  CHECK(evidence.threads[0].cpu_percent.has_value());
  CHECK(evidence.threads[0].native_stack.empty());
  CHECK(evidence.threads[0].state == 'S');
  CHECK(evidence.gathered_ms >= 30);
}

TEST_CASE(
    "Of two collections of one worker at once one waits for the other, and both have stacks") {
  CollectionStage stage;
  std::optional<BusyThreads> busy(std::in_place, stage.side_threads, SideThreads::Lane::kSlow);
  const auto one = stage.start(EvidenceLevel::kStacks, Instant::now() + 20s);
  stage.deliver_once();  // /proc was read
  const auto other = stage.start(EvidenceLevel::kStacks, Instant::now() + 20s);
  stage.deliver_once();
  const auto shorter = stage.start(EvidenceLevel::kStacks, Instant::now() + 19s);
  stage.deliver_once();
  stage.desk.advance(Instant::now() + 19s);
  REQUIRE(stage.done.size() == 1);
  CHECK(missing_but_kernel_stacks(stage.done[0].missing) ==
        "time was up while the worker's evidence was being collected already");
  stage.done.clear();
  busy.reset();
  stage.deliver_until_done(2);
  for (const Evidence& evidence : stage.done) {
    REQUIRE(!evidence.threads.empty());
    CAPTURE(evidence.missing);
    CHECK(!evidence.threads[0].native_stack.empty());
  }
}

TEST_CASE("The state of a worker that was held for another order is read when it runs again") {
  CollectionStage stage;
  std::optional<BusyThreads> busy(std::in_place, stage.side_threads, SideThreads::Lane::kSlow);
  const pid_t pid = stage.worker.pid();
  REQUIRE(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0);
  REQUIRE(::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) == 0);
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  const auto order = stage.start(EvidenceLevel::kProc, Instant::now() + 20s);
  stage.deliver_once();  // /proc was read
  REQUIRE(::ptrace(PTRACE_DETACH, pid, nullptr, nullptr) == 0);
  stage.worker.wait_until_asleep();
  busy.reset();
  stage.deliver_until_done(1);
  REQUIRE(!stage.done[0].threads.empty());
  CHECK(stage.done[0].threads[0].state == 'S');
}

TEST_CASE("What the main threads of 16 children do is evidence, and no child is stopped for it") {
  CollectionStage stage([] {
    for (std::size_t i = 0; i < kMaxChildrenRead + 1; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::pause();
      }
      while (read_stat(fmt::format("/proc/{}", child))->state != 'S') {
      }
    }
  });
  const Evidence evidence = stage.collect(EvidenceLevel::kStacks);
  REQUIRE(evidence.children.size() == kMaxChildrenRead + 1);
  const ThreadEvidence& first = evidence.children.front();
  CHECK(first.sampled != Instant{});
  CHECK(first.state == 'S');
  CHECK(activity_of(first).starts_with("waiting in "));
  CHECK(first.native_stack.empty());
  CHECK(evidence.children.back().sampled == Instant{});  // over the limit
  for (const ThreadEvidence& child : evidence.children) {
    const auto process = open_process(child.tid);
    REQUIRE(process);
    CHECK((process->is_alive() && process->send_signal(SIGKILL)));
  }
}

TEST_CASE("When its time is up an order gets what there is, and no slow evidence is begun") {
  // The worker's signal handler exits: a worker that is alive got no signal.
  CollectionStage stage([] { ::signal(SIGUSR2, [](int) { ::_exit(0); }); });
  const testing::TempFolder folder;
  folder.write("stacks", "");
  // Once the loop has delivered, the slow evidence is queued behind the jobs of `busy`.
  std::optional<BusyThreads> busy(std::in_place, stage.side_threads, SideThreads::Lane::kSlow);
  const Instant until = Instant::now() + 20s;
  const auto order =
      stage.start(EvidenceLevel::kStacks, until, PythonDump{SIGUSR2, folder.path() + "/stacks"});
  stage.deliver_once();
  CHECK(stage.desk.next() == until);
  order->end_by(until + -1s);
  CHECK(stage.desk.next() == until + -1s);
  stage.desk.advance(until + -1s);
  REQUIRE(stage.done.size() == 1);
  CHECK(missing_but_kernel_stacks(stage.done[0].missing) ==
        "time was up while the evidence of other workers was being collected");
  CHECK(!stage.done[0].threads.empty());
  CHECK(stage.complete == 0);
  CHECK(stage.desk.next().is_never());
  busy.reset();
  stage.deliver_once();
  CHECK(stage.done.size() == 1);
  CHECK(stage.process->is_alive());
}

TEST_CASE("Of the workers for one use two are looked at side by side, and each has its turn") {
  CollectionStage stage;
  const Instant until = Instant::now() + 20s;
  std::vector<std::string> missing;
  std::array<EvidenceOrder, 4> orders;
  // The jobs of `busy` hang, and so do those of the orders behind them.
  std::optional<BusyThreads> busy(std::in_place, stage.side_threads, SideThreads::Lane::kUnexpired);
  for (EvidenceOrder& order : orders) {
    order = stage.desk.collect({.worker = stage.process,
                                .level = EvidenceLevel::kProc,
                                .use = EvidenceFor::kPeers,
                                .until = until},
                               Instant::now(), [&](const Evidence& evidence, bool) {
                                 missing.push_back(evidence.missing);
                                 order.reset();
                               });
  }
  const auto other = stage.start(EvidenceLevel::kProc, until, {}, EvidenceFor::kDump);
  CHECK(other->has_begun());
  CHECK(orders[1]->has_begun());
  CHECK_FALSE(orders[2]->has_begun());
  SUBCASE("when their time is up") {
    stage.desk.advance(until);
    const std::string hangs = "time was up while the side threads were busy";
    const std::string waits = "there was no time for this worker";
    CHECK(missing == std::vector{hangs, hangs, waits, waits});
  }
  SUBCASE("also if one is withdrawn that hangs, and one that waits") {
    orders[1] = orders[3] = nullptr;
    stage.desk.advance(Instant::now());
    CHECK_FALSE(orders[2]->has_begun());
    busy.reset();
    while (missing.size() < 2) {
      stage.deliver_once();
    }
    std::ranges::transform(missing, missing.begin(), missing_but_kernel_stacks);
    CHECK(missing == std::vector<std::string>(2));
  }
}

TEST_CASE("Evidence of workers that have not expired takes no side thread from that of a kill") {
  CollectionStage stage;
  for (const bool hangs_for_kills : {false, true}) {
    CAPTURE(hangs_for_kills);
    stage.done.clear();
    const auto lane = [&](SideThreads::Lane of_kills) {
      return hangs_for_kills ? of_kills : SideThreads::Lane::kUnexpired;
    };
    const BusyThreads quick(stage.side_threads, lane(SideThreads::Lane::kQuick));
    const BusyThreads slow(stage.side_threads, lane(SideThreads::Lane::kSlow));
    const auto order = stage.start(EvidenceLevel::kProc, Instant::now() + 20s, {},
                                   hangs_for_kills ? EvidenceFor::kWarning : EvidenceFor::kSignal);
    stage.deliver_until_done(1);
    CHECK(stage.done[0].threads.at(0).cpu_percent.has_value());
  }
}

TEST_CASE("A result for which there is no memory keeps no other one from the loop") {
  SideThreads side_threads;
  bool is_delivered = false;
  std::promise<void> both_done;
  const auto add = [&](const SideThreads::Job& job) {
    side_threads.run(job, SideThreads::Lane::kLooks);  // one after the other
  };
  add([]() -> SideThreads::Delivery { return [] { throw std::bad_alloc(); }; });
  add([&]() -> SideThreads::Delivery { return [&] { is_delivered = true; }; });
  add([&]() -> SideThreads::Delivery {
    both_done.set_value();
    return {};
  });
  both_done.get_future().wait();
  side_threads.deliver();
  CHECK(is_delivered);
}

TEST_CASE("Without time the cheap evidence is collected, and it says what is missing") {
  for (const EvidenceLevel level : {EvidenceLevel::kStacks, EvidenceLevel::kProc}) {
    CollectionStage stage;
    const auto order = stage.start(level, stage.begun + 1ns);
    stage.deliver_until_done(1);
    const Evidence& evidence = stage.done[0];
    CHECK(!evidence.threads.empty());
    CHECK(missing_but_kernel_stacks(evidence.missing) ==
          fmt::format("no CPU sample{}: too little time was left",
                      level == EvidenceLevel::kStacks ? " and no stacks" : ""));
  }
}

TEST_CASE("Of many workers at once each has cheap evidence, and some have no CPU sample") {
  CollectionStage stage;
  constexpr std::size_t kWorkers = 500;
  std::vector<EvidenceOrder> orders;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    orders.push_back(stage.start(EvidenceLevel::kProc, Instant::now() + 20s));
  }
  stage.deliver_until_done(kWorkers);
  std::size_t sampled = 0;
  for (const Evidence& evidence : stage.done) {
    REQUIRE(!evidence.threads.empty());
    const bool has_sample = evidence.threads[0].cpu_percent.has_value();
    sampled += has_sample ? 1U : 0U;
    CHECK(missing_but_kernel_stacks(evidence.missing) ==
          (has_sample ? "" : "no CPU sample: too many workers expired at once"));
  }
  CHECK(sampled > 0);
}

TEST_CASE("A worker that has ended gives no evidence") {
  CollectionStage stage;
  stage.worker.end();
  const Evidence evidence = stage.collect(EvidenceLevel::kStacks);
  CHECK(evidence.threads.empty());
  CHECK(evidence.missing == "the process had ended");
}
