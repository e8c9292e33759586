// Dumps of real processes with injected time.
// SPDX-License-Identifier: MIT
#include "timer_server/control/dump_requests.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <simdjson.h>

#include <memory>
#include <vector>

#include "common/json_fields.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr WaitingClients::Id kClient = 7;

struct DumpStage : WorkerParts {
  // A worker that is a child of the test; a negative rank: unknown.
  Worker& add(int rank) {
    children.push_back(std::make_unique<Child>());
    Worker& worker = **workers.add(process_of(*children.back()));
    worker.facts->emplace();
    if (rank >= 0) {
      (*worker.facts)->rank = rank;
    }
    return worker;
  }
  Status begin(const DumpRequests::Wanted& wanted = {}, Duration patience = 10s) {
    return dumps.begin(kClient, wanted, now + patience, now);
  }
  // Waits for an answer, at most the bound.
  std::string answer() {
    const Instant until = Instant::now() + 10s;
    for (;;) {
      dumps.advance(now);
      if (auto answers = dumps.take_answers(); !answers.empty()) {
        REQUIRE(answers.size() == 1);
        CHECK(answers[0].client == kClient);
        return answers[0].text;
      }
      REQUIRE(Instant::now() < until);
      pollfd news{side_threads.event_fd(), POLLIN, 0};
      ::poll(&news, 1, 10);
      side_threads.deliver();
    }
  }

  Instant now = Instant::now();
  std::vector<std::unique_ptr<Child>> children;
  DumpRequests dumps{{workers, policy, side_threads, EvidenceLevel::kProc, 2s,
                      [](const Worker&) { return std::optional<PythonDump>(); }}};
};

struct Dumped {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  std::vector<simdjson::dom::object> workers;

  explicit Dumped(const std::string& answer) {
    REQUIRE(parser.parse(answer).get_object().get(object) == simdjson::SUCCESS);
    workers = objects_at(object, "workers");
  }
  [[nodiscard]] std::vector<std::int64_t> ranks() const {
    std::vector<std::int64_t> ranks;
    for (const simdjson::dom::object worker : workers) {
      ranks.push_back(integer_at(worker, "rank").value_or(-1));
    }
    return ranks;
  }
};

}  // namespace

TEST_CASE("A dump has the evidence and the open scopes of each worker, by rank") {
  DumpStage stage;
  stage.add(-1);
  stage.add(3);
  Worker& first = stage.add(1);
  stage.acquire(first, "forward", terms_between({1'000}, Instant::never()));
  CHECK(stage.begin());
  const Dumped dumped(stage.answer());
  CHECK(text_at(dumped.object, "answer") == "done");
  CHECK(dumped.ranks() == std::vector<std::int64_t>{1, 3, -1});
  CHECK(integer_at(dumped.object, "omitted") == 0);
  CHECK(integer_at(dumped.workers[0], "pid") == first.process->pid);
  const auto scopes = objects_at(dumped.workers[0], "open_scopes");
  REQUIRE(scopes.size() == 1);
  CHECK(text_at(scopes[0], "scope") == "forward");
  for (const simdjson::dom::object worker : dumped.workers) {
    CHECK_FALSE(text_at(worker, "state_name").empty());
    CHECK_FALSE(objects_at(worker, "threads").empty());
  }
  CHECK(stage.dumps.advance(stage.now).is_never());
}

TEST_CASE("A dump of a rank or a pid has these workers only") {
  DumpStage stage;
  stage.add(1);
  const pid_t pid = stage.add(2).process->pid;
  CHECK(stage.begin({.rank = 1, .pid = {}}));
  CHECK(Dumped(stage.answer()).ranks() == std::vector<std::int64_t>{1});
  CHECK(stage.begin({.rank = {}, .pid = pid}));
  CHECK(Dumped(stage.answer()).ranks() == std::vector<std::int64_t>{2});
}

TEST_CASE("A dump has the job of each worker") {
  DumpStage stage;
  (*stage.add(1).facts)->job_id = "8812";
  (*stage.add(1).facts)->job_id = "8813";
  stage.add(2);
  CHECK(stage.begin({.rank = 1, .pid = {}}));
  const Dumped of_rank(stage.answer());
  REQUIRE(of_rank.workers.size() == 2);
  CHECK(text_at(of_rank.workers[0], "job_id") == "8812");
  CHECK(text_at(of_rank.workers[1], "job_id") == "8813");
  CHECK(stage.begin({.rank = 2, .pid = {}}));
  CHECK(text_at(Dumped(stage.answer()).workers.at(0), "job_id").empty());
}

TEST_CASE("A dump that matches no worker names the watched ones") {
  DumpStage stage;
  CHECK(stage.begin().error().message == "no worker is watched");
  CHECK(stage.begin({.rank = 1, .pid = {}}).error().message == "no watched worker has a rank");
  stage.add(4);
  stage.add(2);
  CHECK(stage.begin({.rank = 1, .pid = {}}).error().message ==
        "no watched worker has rank 1: expected 2, 4");
  CHECK(stage.begin({.rank = {}, .pid = 1})
            .error()
            .message.starts_with("no watched worker has pid 1: expected "));
  for (int rank = 100; rank < 120; ++rank) {
    stage.add(rank);
  }
  CHECK(stage.begin({.rank = 1, .pid = {}}).error().message.ends_with(" and 6 more"));
  CHECK(stage.dumps.advance(stage.now).is_never());
}

TEST_CASE("A dump whose time is up has the workers that were collected") {
  DumpStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  for (int rank = 0; rank < 3; ++rank) {
    stage.add(rank);
  }
  CHECK(stage.begin({}, 1s));
  CHECK(stage.dumps.advance(stage.now) == stage.now + 1s);
  stage.now = stage.now + 1s;
  const Dumped dumped(stage.answer());
  REQUIRE(dumped.workers.size() == 3);
  CHECK(text_at(dumped.workers[0], "missing").find("busy") != std::string::npos);
  CHECK(text_at(dumped.workers[2], "missing") == "there was no time for this worker");
}

TEST_CASE("A worker whose evidence does not come delays a dump by its time limit only") {
  DumpStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  stage.add(0);
  CHECK(stage.begin());
  CHECK(stage.dumps.advance(stage.now) == stage.now + 2s);
  CHECK(stage.dumps.take_answers().empty());
  stage.now = stage.now + 2s;
  CHECK(Dumped(stage.answer()).workers.size() == 1);
}

TEST_CASE("A dump whose client has gone is not answered") {
  DumpStage stage;
  stage.add(0);
  CHECK(stage.begin());
  stage.dumps.advance(stage.now);
  stage.dumps.withdraw(kClient);
  CHECK(stage.dumps.advance(stage.now + 1h).is_never());
  CHECK(stage.dumps.take_answers().empty());
}

TEST_CASE("A dump has a limited number of workers and counts the others") {
  DumpStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  for (std::size_t i = 0; i < DumpRequests::kMaxWorkers + 3; ++i) {
    stage.add(static_cast<int>(i));
  }
  CHECK(stage.begin());
  stage.now = stage.now + DumpRequests::kLimit;
  const Dumped dumped(stage.answer());
  CHECK(dumped.workers.size() == DumpRequests::kMaxWorkers);
  CHECK(integer_at(dumped.object, "omitted") == 3);
}

TEST_CASE("A dump of a limited number of workers has those in the least common scopes") {
  DumpStage stage;
  const int last = static_cast<int>(DumpRequests::kMaxWorkers) + 2;
  for (int rank = 0; rank <= last; ++rank) {
    Worker& worker = stage.add(rank);
    stage.acquire(worker, "step", terms_between({1'000}, Instant::never()));
    if (rank != last - 1) {  // that one is in the outer scope only
      stage.acquire(worker, rank == last ? "forward" : "exchange",
                    terms_between({2'000}, Instant::never()));
    }
  }
  CHECK(stage.begin());
  const Dumped dumped(stage.answer());
  std::vector<std::int64_t> expected;
  for (int rank = 0; rank < last - 4; ++rank) {
    expected.push_back(rank);
  }
  expected.insert(expected.end(), {last - 1, last});
  CHECK(dumped.ranks() == expected);
  CHECK(integer_at(dumped.object, "omitted") == 3);
}
