// Which processes become workers, and when they are removed.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/worker_registry.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include "tests/support/bound.hpp"
#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_server/registry_parts.hpp"
#include "timer_server/system/hardening.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct AdmissionStage : RegistryParts {
  AdmissionStage() { registry.begin_batch(); }

  // Returns why a request of this pid is refused.
  std::string refusal_of(pid_t pid) {
    const auto refused = registry.worker_of(pid);
    return refused ? "" : refused.error().message;
  }
  // Fills the registry with workers in no scope.
  void fill() {
    for (pid_t pid = kNoProcess; workers.count() < most_workers(); ++pid) {
      add_worker(pid);
    }
  }
};

}  // namespace

TEST_CASE("A process of the server's user becomes a worker with its first request") {
  AdmissionStage stage;
  const Child child;
  const auto worker = stage.registry.worker_of(child.pid());
  REQUIRE(worker);
  CHECK((*worker)->process->pid == child.pid());
  CHECK((*worker)->process->start_time == start_time_in_proc(child.pid()));
  CHECK(stage.workers.find(child.pid()) == *worker);
  CHECK(stage.registry.worker_of(child.pid()) == *worker);
  CHECK(stage.workers.count() == 1);
  CHECK(stage.expected.advance(Instant::now()));  // one was expected
}

TEST_CASE("The server, its ancestors and pids without a process do not become workers") {
  AdmissionStage stage;
  for (const pid_t pid : {1, 0, -1, -::getpid()}) {
    CHECK(stage.refusal_of(pid) == fmt::format("pid is {}: expected a worker's, over 1", pid));
  }
  CHECK(stage.refusal_of(::getpid()) == fmt::format("pid {} is this server", ::getpid()));
  const auto none = stage.registry.worker_of(kNoProcess);
  REQUIRE(!none);
  CHECK(none.error().errno_value == ESRCH);
  CHECK(stage.workers.count() == 0);
  if (::getppid() <= 1) {
    FILETIMER_SKIP("the test has no ancestor but pid 1");
  }
  CHECK(stage.refusal_of(::getppid()) ==
        fmt::format("pid {} has started this server", ::getppid()));
}

TEST_CASE("The command line and the rank of a new worker are read on a side thread") {
  AdmissionStage stage;
  const auto worker = stage.registry.worker_for(std::move(*open_process(::getpid())));
  REQUIRE(worker);
  stage.acquire(**worker, "forward", 5'000);
  CHECK_FALSE(*(*worker)->facts);
  pollfd news{stage.side_threads.event_fd(), POLLIN, 0};
  REQUIRE(::poll(&news, 1, static_cast<int>(testing::kBound.count())) == 1);
  stage.side_threads.deliver();
  REQUIRE(*(*worker)->facts);
  CHECK(testing::contains((*(*worker)->facts)->cmdline, "server_tests"));
  stage.unsaved.save(stage.workers);  // the page was noted with the facts
  CHECK_FALSE((*worker)->pipe->needs_save());
}

TEST_CASE("A refusal counts for its batch of requests and is checked again in the next one") {
  AdmissionStage stage;
  stage.fill();
  stage.workers.for_each([](Worker& worker) { worker.kills = 1; });
  const Child child;
  const auto refused = stage.registry.worker_of(child.pid());
  REQUIRE(!refused);
  CHECK(refused.error().errno_value == EAGAIN);
  stage.workers.for_each([](Worker& worker) { worker.kills = 0; });
  CHECK_FALSE(stage.registry.worker_of(child.pid()));
  stage.registry.begin_batch();
  CHECK(stage.registry.worker_of(child.pid()));
}

TEST_CASE("Workers in no scope make room for a new one, unless they are being killed") {
  AdmissionStage stage;
  Worker& killed = stage.add_worker(4711);
  killed.kills = 1;
  Worker& inside = stage.add_worker(4712);
  stage.acquire(inside, "forward", 5'000);
  stage.fill();
  const Child child;
  REQUIRE(stage.registry.worker_of(child.pid()));
  CHECK(stage.workers.count() == 3);
  CHECK(stage.workers.find(4711) == &killed);
  CHECK(stage.workers.find(4712) == &inside);
  CHECK(stage.registry.was_removed(kNoProcess));
  CHECK_FALSE(stage.registry.was_removed(4711));
}

TEST_CASE("A worker stays while there is room for all") {
  AdmissionStage stage;
  stage.add_worker(4711);
  const Child child;
  REQUIRE(stage.registry.worker_of(child.pid()));
  CHECK(stage.workers.find(4711) != nullptr);
}

TEST_CASE("A pid means its exited worker until another process has the pid") {
  AdmissionStage stage;
  Process ended = made_up_process(kNoProcess);
  ended.pidfd = ended_pidfd();
  const Worker& worker = stage.add_worker(std::move(ended));
  CHECK(stage.registry.worker_of(kNoProcess) == &worker);
  const Child child;
  ended = made_up_process(child.pid());
  ended.pidfd = ended_pidfd();
  stage.add_worker(std::move(ended));
  const auto another = stage.registry.worker_of(child.pid());
  REQUIRE(another);
  CHECK((*another)->process->start_time == start_time_in_proc(child.pid()));
  CHECK(stage.registry.was_removed(child.pid()));
}

TEST_CASE("Whether a worker is alive is checked once in a batch of requests") {
  AdmissionStage stage;
  const Child child;
  EndingProcess ending;
  const Worker& worker = stage.add_worker(ending.take(child.pid()));
  CHECK(stage.registry.worker_of(child.pid()) == &worker);
  ending.end();
  CHECK(stage.registry.worker_of(child.pid()) == &worker);
  CHECK_FALSE(stage.registry.was_removed(child.pid()));
  stage.registry.begin_batch();
  REQUIRE(stage.registry.worker_of(child.pid()));
  CHECK(stage.registry.was_removed(child.pid()));
}

TEST_CASE("A process replaces the worker that had its pid before, whose scopes are removed first") {
  AdmissionStage stage;
  std::vector<std::uint64_t> removed;
  stage.on_remove = [&](Worker& worker) {
    CHECK(stage.workers.find(::getpid()) == &worker);
    removed.push_back(worker.process->start_time);
  };
  Process before = made_up_process(::getpid());
  SUBCASE("it had another start time") {}
  SUBCASE("it has exited") {
    before = std::move(*open_process(::getpid()));
    before.pidfd = ended_pidfd();
  }
  const std::uint64_t start_time = before.start_time;
  stage.add_worker(std::move(before));
  const auto worker = stage.registry.worker_for(std::move(*open_process(::getpid())));
  REQUIRE(worker);
  CHECK(removed == std::vector{start_time});
  CHECK(stage.registry.was_removed(::getpid()));
  CHECK((*worker)->process->start_time == start_time_in_proc(::getpid()));
  CHECK(stage.workers.count() == 1);
  CHECK(stage.registry.worker_for(std::move(*open_process(::getpid()))) == *worker);
  CHECK(removed.size() == 1);
}

TEST_CASE("was_removed() is true from the removal of a worker until forget_removed()") {
  AdmissionStage stage;
  stage.registry.remove(stage.add_worker(4711));
  CHECK(stage.workers.find(4711) == nullptr);
  CHECK(stage.registry.was_removed(4711));
  CHECK_FALSE(stage.registry.was_removed(4712));
  stage.registry.forget_removed();
  CHECK_FALSE(stage.registry.was_removed(4711));
}

TEST_CASE("An exit wakes the loop, and the worker is removed when all requests were read") {
  AdmissionStage stage;
  EndingProcess first;
  EndingProcess second;
  REQUIRE(stage.registry.worker_for(first.take(4711)));
  REQUIRE(stage.registry.worker_for(second.take(4712)));
  first.end();
  stage.dispatch();
  CHECK(stage.workers.find(4711) != nullptr);
  stage.registry.remove_exited_workers();
  CHECK(stage.workers.find(4711) == nullptr);
  CHECK(stage.workers.find(4712) != nullptr);
}

TEST_CASE("The exit of a worker does not remove the process that has its pid by then") {
  AdmissionStage stage;
  EndingProcess first;
  EndingProcess second;
  REQUIRE(stage.registry.worker_for(first.take(4711)));
  first.end();
  stage.dispatch();
  const auto later = stage.registry.worker_for(second.take(4711));
  REQUIRE(later);
  stage.registry.remove_exited_workers();
  CHECK(stage.workers.find(4711) == *later);
  second.end();
  stage.dispatch();
  stage.registry.remove_exited_workers();
  CHECK(stage.workers.find(4711) == nullptr);
}

TEST_CASE("A process whose exit cannot be watched becomes no worker") {
  AdmissionStage stage;
  const auto refused = stage.registry.worker_for(made_up_process(4711));  // without a pidfd
  REQUIRE(!refused);
  CHECK(testing::contains(refused.error().message, "can't be watched"));
  CHECK(stage.workers.count() == 0);
}
