// Evidence of the peers of an incident: of real processes, with time as the test says it is.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <memory>
#include <vector>

#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct PeerStage : WorkerParts {
  explicit PeerStage(const KillPolicy& policy_of_kills = {.evidence = EvidenceLevel::kProc})
      : peers(policy_of_kills, records, *log, side_threads) {}

  Worker& add(int rank) {
    children.push_back(std::make_unique<Child>());
    Worker& worker = add_worker(process_of(*children.back()));
    worker.facts->emplace();
    (*worker.facts)->rank = rank;
    return worker;
  }
  void start(const std::string& incident, const std::vector<Worker*>& workers_of_job,
             std::size_t omitted = 0, const std::string& job = "8812") {
    std::vector<GroupCollection::Member> members;
    for (const Worker* const worker : workers_of_job) {
      members.emplace_back(WorkerIdentity::of(*worker), std::nullopt);
    }
    peers.start(incident, job, std::move(members), omitted, now);
  }
  void advance_until_done() {
    const Instant until = Instant::now() + 10s;
    for (peers.advance(now); peers.is_running(); peers.advance(now)) {
      REQUIRE(Instant::now() < until);
      pollfd news{side_threads.event_fd(), POLLIN, 0};
      ::poll(&news, 1, 10);
      side_threads.deliver();
    }
  }
  std::vector<std::int64_t> recorded_ranks() {
    std::vector<std::int64_t> ranks;
    for (const testing::Record& record : records_of("peer_evidence")) {
      ranks.push_back(record.integer("rank"));
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  Instant now = Instant::now();
  std::vector<std::unique_ptr<Child>> children;
  PeerEvidence peers;
};

using Ranks = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("Each peer of an incident has a record of its evidence") {
  PeerStage stage;
  CHECK(stage.peers.is_wanted());
  CHECK_FALSE(stage.peers.is_running());
  stage.start("k-i1", {&stage.add(0), &stage.add(1), &stage.add(3)}, 2);
  CHECK(stage.peers.is_running());
  stage.advance_until_done();
  CHECK(stage.recorded_ranks() == Ranks{0, 1, 3});
  const testing::Records records = stage.records_of("peer_evidence");
  CHECK(records[0].integer("peers_omitted") == 2);
  CHECK_FALSE(records[1].has("peers_omitted"));
  for (const testing::Record& record : records) {
    CHECK(record.text("incident") == "k-i1");
    CHECK_FALSE(record.has("id"));
    CHECK_FALSE(record.text("state").empty());
  }
  CHECK(stage.peers.advance(stage.now).is_never());
}

TEST_CASE("An incident without peers has nothing to wait for") {
  PeerStage stage;
  stage.start("k-i1", {});
  CHECK_FALSE(stage.peers.is_running());
}

TEST_CASE("When the time for evidence is up, each peer has a record of what there is") {
  PeerStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  stage.start("k-i1", {&stage.add(0), &stage.add(1), &stage.add(2)});
  CHECK(stage.peers.advance(stage.now) == stage.now + 2s);
  CHECK(stage.peers.is_running());
  stage.peers.advance(stage.now + 2s);
  CHECK_FALSE(stage.peers.is_running());
  const testing::Records records = stage.records_of("peer_evidence");
  REQUIRE(records.size() == 3);
  CHECK(records[0].text("missing").find("busy") != std::string::npos);
  CHECK(records[2].text("missing") == "there was no time for this worker");
}

TEST_CASE("A peer that expires itself is left out, unless its collection has begun") {
  PeerStage stage;
  std::vector<Worker*> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(&stage.add(rank));
  }
  stage.start("k-i1", workers);
  stage.peers.advance(stage.now);
  stage.peers.withdraw(*workers[0]->process);
  stage.peers.withdraw(*workers[3]->process);
  stage.advance_until_done();
  CHECK(stage.recorded_ranks() == Ranks{0, 1, 2});
}

TEST_CASE("Peers that an incident without a record has left out are not of the next one") {
  PeerStage stage;
  Worker& withdrawn = stage.add(0);
  stage.start("k-i1", {&withdrawn}, 3);
  stage.peers.withdraw(*withdrawn.process);
  stage.advance_until_done();
  stage.start("k-i2", {&stage.add(1)});
  stage.advance_until_done();
  const testing::Records records = stage.records_of("peer_evidence");
  REQUIRE(records.size() == 1);
  CHECK_FALSE(records[0].has("peers_omitted"));
}

TEST_CASE("Each job of an incident has its peers, once") {
  PeerStage stage;
  CHECK(stage.peers.is_first_of_job("k-i1", "8812"));
  stage.start("k-i1", {&stage.add(0)});
  CHECK_FALSE(stage.peers.is_first_of_job("k-i1", "8812"));
  CHECK(stage.peers.is_first_of_job("k-i1", "8813"));
  CHECK(stage.peers.is_first_of_job("k-i2", "8812"));
  stage.now = stage.now + 1s;
  stage.start("k-i1", {&stage.add(1)}, 0, "8813");
  stage.advance_until_done();
  CHECK(stage.recorded_ranks() == Ranks{0, 1});
  stage.start("k-i1", {&stage.add(2)}, 0, "8814");
  stage.advance_until_done();
  CHECK(stage.recorded_ranks() == Ranks{0, 1, 2});
  CHECK_FALSE(stage.peers.is_first_of_job("k-i1", "8812"));
}

TEST_CASE("The next incident, and the end of the server, record what was collected") {
  PeerStage stage;
  const BusyThreads busy(stage.side_threads, SideThreads::Lane::kUnexpired);
  Worker& one = stage.add(0);
  Worker& other = stage.add(1);
  stage.start("k-i1", {&one});
  stage.start("k-i2", {&other});
  stage.peers.stop();
  const testing::Records records = stage.records_of("peer_evidence");
  REQUIRE(records.size() == 2);
  CHECK(records[0].text("incident") == "k-i1");
  CHECK(records[0].integer("rank") == 0);
  CHECK(records[1].text("incident") == "k-i2");
  CHECK(records[1].integer("rank") == 1);
}

TEST_CASE("The evidence of peers has a level of its own, and a dry run leaves peers alone") {
  const auto is_wanted = [](const KillPolicy& policy) {
    return PeerStage(policy).peers.is_wanted();
  };
  CHECK_FALSE(is_wanted({.evidence = EvidenceLevel::kNone}));
  CHECK(is_wanted({.evidence = EvidenceLevel::kNone, .peer_evidence = EvidenceLevel::kProc}));
  CHECK_FALSE(is_wanted({.evidence = EvidenceLevel::kProc, .peer_evidence = EvidenceLevel::kNone}));
  CHECK_FALSE(is_wanted({.evidence = EvidenceLevel::kProc, .dry_run = true}));
}
