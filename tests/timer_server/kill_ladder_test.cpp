// The ladder with real processes, and time as the test says it is: no step waits for a clock.
// SPDX-License-Identifier: MIT
#include "timer_server/kill_ladder.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <map>

#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// A worker to kill, and everything below a server that a ladder needs.
struct LadderStage {
  explicit LadderStage(
      KillPolicy policy = quick(), const std::function<void()>& worker_does_first = [] {})
      : worker(worker_does_first), process(worker.process()), ladder(make(policy)) {}

  static KillPolicy quick() {
    KillPolicy policy;
    policy.evidence = EvidenceLevel::kNone;
    return policy;
  }

  // Whose kills wait for evidence, and so are recorded and have sent no signal, until
  // kEvidenceLimit.
  static constexpr Duration kEvidenceLimit = 60s;
  static KillPolicy waiting() {
    KillPolicy policy;
    policy.evidence = EvidenceLevel::kProc;
    policy.evidence_timeout = kEvidenceLimit;
    return policy;
  }

  KillOrder order_for(int signal, std::optional<Duration> grace = {}) {
    KillOrder order;
    order.worker.process = std::make_shared<const Process>(std::move(*open_process(process.pid)));
    order.worker.facts = std::make_shared<std::optional<WorkerFacts>>(WorkerFacts{});
    order.incident = std::make_shared<Incident>();
    order.incident->id = records.next_incident_id();
    order.incident->when = ClockReading::now();
    Expiry expiry;
    expiry.id = records.next_expiry_id();
    expiry.incident = order.incident->id;
    expiry.scope_id = "forward";
    expiry.scope.name = "forward";
    expiry.scope.terms.signal = signal;
    expiry.scope.terms.grace = grace_of(grace);
    order.expiries = {expiry};
    return order;
  }

  // Calls advance() at `at` until the log has synced all there was, then once more.
  Instant advance(Instant at) {
    ladder->advance(at);
    REQUIRE(log->drain(10s));
    return ladder->advance(at);
  }

  // The events of the log, in order.
  std::string events() {
    std::string all;
    for (const std::string& line : lines_of_log(*log, folder)) {
      const std::size_t at = line.find("\"event\":\"") + 9;
      const std::string event = line.substr(at, line.find('"', at) - at);
      all += (all.empty() ? "" : " ") + event;
      last_line = line;
      lines[event] = line;
    }
    return all;
  }

  void start(int signal, std::optional<Duration> grace = {}) {
    ladder->start(order_for(signal, grace), now);
  }

  Child worker;
  const Process process;
  const Instant now = Instant::now();
  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  SideThreads side_threads;
  std::vector<KillVerdict> ended;
  std::string last_line;
  std::map<std::string, std::string> lines;  // by event
  bool is_released_on_page = false;
  std::unique_ptr<KillLadder> ladder;

 private:
  std::unique_ptr<KillLadder> make(KillPolicy policy) {
    return std::make_unique<KillLadder>(
        policy, records, *log, side_threads,
        KillLadder::Listener{
            .was_released = [this](const Process&, const Expiry&) { return is_released_on_page; },
            .on_signal = [](const Process&, bool) { return std::vector<std::string>{}; },
            .on_end = [this](const KillOrder&,
                             const KillEnd& end) { ended.push_back(end.verdict); }});
  }
};

void wait_for_death(const Process& process) {
  pollfd poll{process.pidfd.get(), POLLIN, 0};
  REQUIRE(::poll(&poll, 1, 10'000) == 1);
}

void ignore_sigterm() {
  ::signal(SIGTERM, SIG_IGN);
}

}  // namespace

TEST_CASE("A worker is signalled only after the verdict is on disk") {
  LadderStage stage;
  stage.start(SIGKILL);
  stage.ladder->advance(stage.now);
  REQUIRE(stage.log->drain(10s));
  CHECK(stage.events() == "incident expired");
  stage.ladder->advance(stage.now);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.ladder->advance(stage.now + 1ms);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(stage.events() == "incident expired killed");
  CHECK(stage.ladder->idle());
}

TEST_CASE("SIGKILL follows when the grace has passed, and not before") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM, 5s);
  const Instant next = stage.advance(stage.now);
  CHECK(next - stage.now >= 5s);
  stage.ladder->advance({next.ns - 1});
  CHECK(stage.process.is_alive());
  stage.ladder->advance(next);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.ladder->advance(next);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  stage.events();
  CHECK(stage.last_line.find("SIGTERM") < stage.last_line.find("SIGKILL"));
}

TEST_CASE("Who leaves a scope within its grace is spared, where the scope may be left then") {
  for (const bool on_page : {true, false}) {
    CAPTURE(on_page);
    LadderStage stage(LadderStage::quick(), ignore_sigterm);
    KillOrder order = stage.order_for(SIGTERM, 5s);
    order.expiries.front().scope.terms.spare_if_left = true;
    const Process& worker = *order.worker.process;
    stage.ladder->start(std::move(order), stage.now);
    CHECK(stage.advance(stage.now) == stage.now + KillLadder::kLeaveLook);
    if (on_page) {
      stage.is_released_on_page = true;
    } else {
      CHECK(stage.ladder->note_release(worker, "forward", stage.now + 1s));
    }
    stage.ladder->advance(stage.now + 1s);
    CHECK(stage.process.is_alive());
    CHECK(stage.ended == std::vector{KillVerdict::kSpared});
    CHECK(stage.events() == "incident expired released_late killed");
    CHECK(stage.last_line.find("released within the grace") != std::string::npos);
  }
}

TEST_CASE("Who leaves it and ends by itself did not die of the signal") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  stage.ladder->start(std::move(order), stage.now);
  stage.advance(stage.now);
  stage.is_released_on_page = true;
  stage.worker.end();
  stage.ladder->advance(stage.now + 1s);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
}

TEST_CASE("Who does not leave it is killed when the grace is over") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  stage.ladder->start(std::move(order), stage.now);
  stage.advance(stage.now);
  const Instant next = stage.now + 6s;  // behind the grace
  stage.ladder->advance(next);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.ladder->advance(next);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
}

TEST_CASE("Of two scopes that may be left both are waited for, each with its own grace") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder outer = stage.order_for(SIGTERM, 5s);
  outer.expiries.front().scope.terms.spare_if_left = true;
  KillOrder inner = stage.order_for(SIGTERM, 60s);
  inner.worker = outer.worker;
  inner.expiries.front().scope_id = "inner";
  inner.expiries.front().scope.terms.spare_if_left = true;
  const Process& worker = *outer.worker.process;
  stage.ladder->start(std::move(outer), stage.now);
  stage.advance(stage.now);
  const Instant next = stage.now + 6s;  // behind the grace
  stage.ladder->start(std::move(inner), stage.now + 1s);
  stage.advance(stage.now + 1s);
  CHECK(stage.ladder->note_release(worker, "inner", stage.now + 2s));
  stage.ladder->advance(stage.now + 2s);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
  stage.ladder->advance(next);  // the outer one was not left
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.ladder->advance(next);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared, KillVerdict::kDead});
}

TEST_CASE("A scope that may be left does not soften another that expires with it") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  order.expiries.push_back(order.expiries.front());
  order.expiries.back().scope_id = "other";
  order.expiries.back().scope.terms.spare_if_left = false;
  order.expiries.back().scope.terms.signal = SIGKILL;
  stage.ladder->start(std::move(order), stage.now);
  stage.advance(stage.now);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
}

TEST_CASE("Without grace a worker that outlives its signal is left alone and told so") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM);
  const Instant next = stage.advance(stage.now);
  CHECK(next - stage.now >= 30s);
  stage.ladder->advance(next);
  CHECK(stage.process.is_alive());
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
}

TEST_CASE("A worker that ended before its signal is already gone") {
  LadderStage stage;
  stage.start(SIGKILL);
  stage.ladder->advance(stage.now);
  stage.worker.end();
  REQUIRE(stage.log->drain(10s));
  stage.ladder->advance(stage.now);
  CHECK(stage.ended == std::vector{KillVerdict::kAlreadyGone});
  CHECK(stage.events() == "incident expired killed");
}

TEST_CASE("Signal 0 and a dry run spare the worker") {
  KillPolicy dry = LadderStage::quick();
  dry.dry_run = true;
  for (const auto& [policy, signal] :
       {std::pair{LadderStage::quick(), 0}, std::pair{dry, SIGKILL}}) {
    LadderStage stage(policy);
    stage.start(signal);
    stage.advance(Instant::now());
    CHECK(stage.ended == std::vector{KillVerdict::kSpared});
    CHECK(stage.process.is_alive());
  }
}

TEST_CASE("Nobody is killed for a scope that was released before the signal") {
  LadderStage stage(LadderStage::waiting());
  KillOrder order = stage.order_for(SIGKILL);
  const auto held = order.worker.process;
  stage.ladder->start(std::move(order), stage.now);
  stage.ladder->advance(stage.now);
  CHECK(!stage.ladder->note_release(*held, "other", stage.now));
  CHECK(stage.ladder->note_release(*held, "forward", stage.now));
  CHECK(!stage.ladder->note_release(*held, "forward", stage.now));
  stage.advance(stage.now + LadderStage::kEvidenceLimit);
  CHECK(stage.process.is_alive());
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
  CHECK(stage.events() == "incident expired released_late evidence killed");
}

TEST_CASE("A release after the signal changes nothing") {
  LadderStage stage;
  KillOrder order = stage.order_for(SIGKILL);
  const auto held = order.worker.process;
  stage.ladder->start(std::move(order), stage.now);
  stage.advance(stage.now);
  CHECK(!stage.ladder->note_release(*held, "forward", stage.now));
  wait_for_death(stage.process);
}

TEST_CASE("Of two expired scopes the one that was not released still kills, with its own signal") {
  LadderStage stage(LadderStage::waiting());
  KillOrder order = stage.order_for(SIGTERM);
  order.expiries.push_back(order.expiries.front());
  order.expiries.back().scope_id = "outer";
  order.expiries.back().scope.terms.signal = SIGKILL;
  const auto held = order.worker.process;
  stage.ladder->start(std::move(order), stage.now);
  stage.ladder->advance(stage.now);
  CHECK(stage.ladder->note_release(*held, "forward", stage.now));
  stage.advance(stage.now + LadderStage::kEvidenceLimit);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
}

TEST_CASE("Evidence stands between the verdict and the signal") {
  KillPolicy policy = LadderStage::quick();
  policy.evidence = EvidenceLevel::kProc;
  policy.evidence_timeout = 60s;
  LadderStage stage(policy);
  stage.start(SIGKILL);
  stage.advance(stage.now);
  CHECK(stage.process.is_alive());
  while (stage.events() == "incident expired") {
    CHECK(stage.process.is_alive());
    pollfd poll{stage.side_threads.event_fd(), POLLIN, 0};
    REQUIRE(::poll(&poll, 1, 10'000) == 1);
    stage.side_threads.deliver();
  }
  stage.ladder->advance(stage.now);
  wait_for_death(stage.process);
  stage.ladder->advance(stage.now);
  CHECK(stage.events() == "incident expired evidence killed");
}

TEST_CASE("Evidence that does not come delays the signal by its limit and no more") {
  KillPolicy policy = LadderStage::quick();
  policy.evidence = EvidenceLevel::kProc;
  policy.evidence_timeout = 3s;
  LadderStage stage(policy);
  stage.start(SIGKILL);
  const Instant next = stage.advance(stage.now);  // nothing is delivered
  CHECK(next == stage.now + 3s);
  stage.ladder->advance(next);
  wait_for_death(stage.process);
  CHECK(stage.events().starts_with("incident expired evidence"));
  CHECK(stage.lines["evidence"].find("time was up") != std::string::npos);
}

TEST_CASE("A hurried ladder gives no grace") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM, 1h);
  stage.advance(stage.now);
  stage.ladder->hurry(stage.now);
  stage.ladder->advance(stage.now);
  wait_for_death(stage.process);
}
