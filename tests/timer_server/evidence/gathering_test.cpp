// Gathering with real processes: what comes, in which order, and what is said when it is cut off.
// SPDX-License-Identifier: MIT
#include "timer_server/evidence/gathering.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include "tests/support/kernel_stacks.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;
using namespace std::chrono_literals;
using testing::missing_but_kernel_stacks;

namespace {

struct GatheringStage {
  std::shared_ptr<Gathering> start(EvidenceLevel level, Instant until,
                                   std::optional<PythonDump> python = {}) {
    return Gathering::start(side_threads, process, {level, until, std::move(python)},
                            [this] { ++done; });
  }
  // Evidence when it is done. On a busy machine a thread may not stop within the helper's time;
  // then it is gathered again.
  Evidence gather(EvidenceLevel level, const std::optional<PythonDump>& python = {}) {
    constexpr int kTries = 10;
    for (int tries = 1;; ++tries) {
      done = 0;
      const auto gathering = start(level, Instant::now() + 20s, python);
      deliver_until_done(1);
      Evidence evidence = gathering->take();
      if (tries == kTries || evidence.missing.find("it did not stop") == std::string::npos) {
        return evidence;
      }
    }
  }
  void deliver_until_done(int count) {
    while (done < count) {
      pollfd poll{side_threads.event_fd(), POLLIN, 0};
      REQUIRE(::poll(&poll, 1, 20'000) == 1);
      side_threads.deliver();
    }
  }

  explicit GatheringStage(const std::function<void()>& worker_does_first = [] {})
      : worker(worker_does_first) {
    worker.wait_until_asleep();
  }

  Child worker;
  std::shared_ptr<const Process> process = std::make_shared<const Process>(process_of(worker));
  SideThreads side_threads;
  int done = 0;
};

}  // namespace

TEST_CASE("At level proc there is a CPU sample, and no stack of user space") {
  GatheringStage stage;
  const Evidence evidence = stage.gather(EvidenceLevel::kProc);
  REQUIRE(!evidence.threads.empty());
  CHECK(evidence.threads[0].cpu_percent.has_value());
  CHECK(evidence.threads[0].native_stack.empty());
  CHECK(evidence.state == 'S');
  CHECK(evidence.gathered_ms >= 30);
}

TEST_CASE("At level stacks the state is that from before the worker was held") {
  GatheringStage stage;
  const Evidence evidence = stage.gather(EvidenceLevel::kStacks);
  REQUIRE(!evidence.threads.empty());
  CHECK(evidence.state == 'S');
  CHECK(evidence.threads[0].state == 'S');
  CHECK(!evidence.threads[0].native_stack.empty());
  CHECK(missing_but_kernel_stacks(evidence.missing) == "");
}

TEST_CASE("What is taken before it is done says what was still to come, and nothing comes after") {
  GatheringStage stage;
  const auto gathering = stage.start(EvidenceLevel::kStacks, Instant::now() + 20s);
  const Evidence early = gathering->take();
  CHECK(early.missing.find("time was up while ") != std::string::npos);
  CHECK(gathering->take().threads.empty());
}

TEST_CASE("What is taken while it waits for its closer look is not looked at any more") {
  GatheringStage stage;
  // One turn of the loop later: the closer look is in line behind the jobs of `busy`.
  std::optional<BusyThreads> busy(std::in_place, stage.side_threads, SideThreads::Lane::kSlow);
  const auto gathering = stage.start(EvidenceLevel::kProc, Instant::now() + 20s);
  pollfd poll{stage.side_threads.event_fd(), POLLIN, 0};
  REQUIRE(::poll(&poll, 1, 20'000) == 1);
  stage.side_threads.deliver();
  const Evidence early = gathering->take();
  CHECK(missing_but_kernel_stacks(early.missing) ==
        "time was up while it waited for its turn behind other workers");
  CHECK(!early.threads.empty());
  busy.reset();
  stage.deliver_until_done(1);
  CHECK(gathering->take().threads.empty());
}

TEST_CASE("Without time there is cheap evidence and a word on the rest") {
  GatheringStage stage;
  const auto gathering = stage.start(EvidenceLevel::kStacks, Instant::now());
  stage.deliver_until_done(1);
  const Evidence evidence = gathering->take();
  CHECK(!evidence.threads.empty());
  CHECK(missing_but_kernel_stacks(evidence.missing) ==
        "no CPU sample and no stacks: time was up while other workers had their turn");
}

TEST_CASE("Many workers at once have cheap evidence all, and wait for the CPU sample together") {
  GatheringStage stage;
  constexpr int kWorkers = 500;
  std::vector<std::shared_ptr<Gathering>> gatherings;
  for (int i = 0; i < kWorkers; ++i) {
    gatherings.push_back(stage.start(EvidenceLevel::kProc, Instant::now() + 20s));
  }
  stage.deliver_until_done(kWorkers);
  std::size_t sampled = 0;
  for (const auto& gathering : gatherings) {
    const Evidence evidence = gathering->take();
    REQUIRE(!evidence.threads.empty());
    const bool has_sample = evidence.threads[0].cpu_percent.has_value();
    sampled += has_sample ? 1U : 0U;
    CHECK(missing_but_kernel_stacks(evidence.missing) ==
          (has_sample ? "" : "no CPU sample: too many workers expired at once"));
  }
  CHECK(sampled > 0);
}

TEST_CASE("A worker that has ended gives no evidence") {
  GatheringStage stage;
  stage.worker.end();
  const Evidence evidence = stage.gather(EvidenceLevel::kStacks);
  CHECK(evidence.threads.empty());
  CHECK(evidence.missing == "the process had ended");
}

TEST_CASE("Python's stacks are asked for only where that was said, and after the native ones") {
  // The worker's handler ends it: so it is alive exactly if it was not asked.
  GatheringStage stage([] { ::signal(SIGUSR2, [](int) { ::_exit(0); }); });
  CHECK(missing_but_kernel_stacks(stage.gather(EvidenceLevel::kStacks).missing) == "");
  CHECK(stage.process->is_alive());
  const PythonDump dump{SIGUSR2, "/dev/null"};
  const Evidence refused = stage.gather(EvidenceLevel::kStacks, dump);
  CHECK(missing_but_kernel_stacks(refused.missing) ==
        "no Python stacks: '/dev/null' is no regular file");
  CHECK(stage.process->is_alive());
}
