// What follows a verdict, with workers that no signal reaches and times as the test says they are.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/verdicts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "common/mapped_file.hpp"
#include "tests/support/children.hpp"
#include "tests/timer_server/busy_threads.hpp"
#include "tests/timer_server/verdict_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr pid_t kVictim = kNoProcess;
constexpr Instant kDeadline{5'000};
constexpr ClockReading kJudgedAt{1'000'000'000, {6'000}};

struct VerdictStage : VerdictParts {
  explicit VerdictStage(Settings with = worker_only(), Duration read_within = 10s)
      : VerdictParts(std::move(with), read_within) {}

  void open(Worker& of, std::string_view id, int signal = SIGKILL, Instant deadline = kDeadline) {
    ScopeTerms terms = terms_between({1'000}, deadline);
    terms.signal = signal;
    acquire(of, id, terms);
  }
  // Gives the verdict on what is due at its deadline.
  std::vector<DeadlineScan::DueScope> judge(Instant woke = kJudgedAt.mono) {
    return scan.run(woke, board, Instant::never()).due;
  }
  void carry_out(Worker& of, const std::vector<DeadlineScan::DueScope>& due,
                 const ClockReading& now = kJudgedAt) {
    std::vector<DeadlineScan::DueScope> own;
    std::ranges::copy_if(due, std::back_inserter(own),
                         [&of](const auto& scope) { return scope.worker == &of; });
    verdicts.carry_out(own, now);
  }
  void expire(Worker& of, const ClockReading& now = kJudgedAt) { carry_out(of, judge(), now); }
  // The worker exits, and the server sees it.
  void end_worker() {
    process.end();
    verdicts.ladder().note_worker_ended(*worker.process);
  }
  testing::Record only(std::string_view event) {
    testing::Records all = records_of(event);
    REQUIRE(all.size() == 1);
    return all.front();
  }

  EndingProcess process;
  Worker& worker = add_known_worker(process.take(kVictim));
};

Settings dry_run() {
  Settings settings = VerdictParts::worker_only();
  settings.kill.dry_run = true;
  return settings;
}

using Cancelled = std::vector<std::string>;

}  // namespace

TEST_CASE("The verdicts on one worker are one kill, recorded with the earliest deadline first") {
  VerdictStage stage;
  stage.open(stage.worker, "later", 0, {4'000});
  stage.open(stage.worker, "first", 0, {3'000});
  stage.open(stage.worker, "open", 0, {9'000});
  stage.expire(stage.worker);
  CHECK(stage.verdicts.expired() == 2);
  CHECK(stage.verdicts.ladder().count() == 1);
  CHECK(stage.worker.kills == 1);
  stage.advance();
  const testing::Records expired = stage.records_of("expired");
  REQUIRE(expired.size() == 2);
  CHECK(expired[0].text("scope") == "first");
  CHECK(expired[0].text("id").ends_with("-1"));
  CHECK(expired[0].integer("deadline_mono_ns") == 3'000);
  CHECK(expired[0].number("overdue_ms") == 0.003);
  CHECK(expired[0].array("open_scopes").size() == 3);
  CHECK(expired[1].text("scope") == "later");
  CHECK(expired[1].text("id").ends_with("-2"));
  CHECK(stage.verdicts.ladder().idle());
}

TEST_CASE("Expired scopes are counted by name, with the time from the deadline to the verdict") {
  VerdictStage stage;
  stage.open(stage.worker, "forward", 0, {4'000});
  stage.open(stage.worker, "backward", 0, {3'000});
  stage.expire(stage.worker, {0, Instant{4'000} + 3ms});
  const auto& expired = stage.verdicts.expired_by_scope().values();
  REQUIRE(expired.size() == 2);
  CHECK(expired.at("forward") == 1);
  CHECK(expired.at("backward") == 1);
  const LatenessCounts& lateness = stage.verdicts.lateness();
  CHECK(lateness.counts[2] == 2);  // above 2 ms, up to 5 ms
  CHECK(lateness.total_s == doctest::Approx(0.006001));
  CHECK(stage.verdicts.longest_lateness() == 3ms + 1us);
}

TEST_CASE("An expiry has the deadline that was judged, with the time that the worker was given") {
  VerdictStage stage;
  stage.open(stage.worker, "forward", 0);
  stage.given.add({4'000}, 700ns);
  stage.expire(stage.worker);
  stage.advance();
  CHECK(stage.only("expired").integer("deadline_mono_ns") == 5'700);
}

TEST_CASE("Expiries within two seconds are one incident, and a later one is another") {
  VerdictStage stage;
  std::vector<std::string> incidents;
  for (const Duration after : {0ns, Verdicts::kIncidentWindow, Verdicts::kIncidentWindow + 1ns}) {
    Worker& other =
        stage.add_known_worker(made_up_process(kVictim + 1 + static_cast<pid_t>(incidents.size())));
    stage.open(other, "forward", 0);
    stage.expire(other, {kJudgedAt.wall_ns, kJudgedAt.mono + after});
    stage.advance();
    incidents.push_back(stage.records_of("expired").back().text("incident"));
  }
  CHECK(incidents[0] == incidents[1]);
  CHECK(incidents[2] != incidents[1]);
  const testing::Records recorded = stage.records_of("incident");
  REQUIRE(recorded.size() == 2);
  CHECK(recorded[0].text("incident") == incidents[0]);
  CHECK(recorded[1].text("incident") == incidents[2]);
}

TEST_CASE("An incident names the expiries that were judged before its record") {
  VerdictStage stage;
  Worker& other = stage.add_known_worker(made_up_process(kVictim + 1));
  stage.open(stage.worker, "forward", 0);
  stage.open(other, "forward", 0);
  const auto due = stage.judge();
  stage.carry_out(stage.worker, due);
  stage.carry_out(other, due);
  stage.advance();
  const testing::Records expired = stage.records_of("expired");
  REQUIRE(expired.size() == 2);
  CHECK(stage.only("incident").strings("expired") ==
        std::vector{expired[0].text("id"), expired[1].text("id")});
}

TEST_CASE("The workers of an incident are read with the verdict if there is time, or else later") {
  for (const bool has_time : {true, false}) {
    CAPTURE(has_time);
    VerdictStage stage(VerdictStage::worker_only(), has_time ? Duration{10s} : Duration::zero());
    Worker& waits = stage.add_known_worker(made_up_process(kVictim + 1));
    stage.open(waits, "exchange", 0, {9'000});
    stage.open(stage.worker, "forward");
    stage.expire(stage.worker);
    stage.advance();
    const testing::Record incident = stage.only("incident");
    CHECK(incident.array("open_scopes").size() == 2);  // that of the killed worker as well
    CHECK(incident.has("read_late") == !has_time);
    CHECK((has_time || incident.integer("read_late") == 1));
  }
}

TEST_CASE("A worker that is removed before it was read is not in the incident") {
  VerdictStage stage(VerdictStage::worker_only(), Duration::zero());
  Worker& waits = stage.add_known_worker(made_up_process(kVictim + 1));
  stage.open(waits, "exchange", 0, {9'000});
  stage.worker.facts->reset();
  stage.open(stage.worker, "forward");
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  stage.workers.remove(waits);
  stage.add_known_worker(made_up_process(kVictim + 1));  // another process has its pid
  stage.advance();
  const testing::Record incident = stage.only("incident");
  CHECK(incident.integer("workers") == 1);
  CHECK_FALSE(incident.has("read_late"));
}

TEST_CASE("An incident waits for the rank of the first worker, as its verdict does") {
  VerdictStage stage;
  stage.worker.facts->reset();
  stage.open(stage.worker, "forward", 0);
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.records_of("incident").empty());
  stage.worker.facts->emplace().rank = 3;
  stage.advance(kJudgedAt.mono + 1ms);
  CHECK(stage.only("incident").array("open_scopes").at(0)["rank"].get_int64().value() == 3);
  CHECK(records_of_log(*stage.log, stage.folder).at(0).is("expired", kVictim));
}

TEST_CASE("An incident waits for the ranks of the others, but not longer than a signal") {
  for (const bool has_evidence : {true, false}) {
    CAPTURE(has_evidence);
    Settings settings = VerdictStage::worker_only();
    settings.kill.evidence = has_evidence ? EvidenceLevel::kProc : EvidenceLevel::kNone;
    VerdictStage stage(settings);
    Worker& other = stage.add_worker(made_up_process(kVictim + 1));
    stage.open(other, "exchange", 0, {9'000});
    stage.open(stage.worker, "forward");
    stage.expire(stage.worker);
    stage.advance(kJudgedAt.mono);
    CHECK(stage.records_of("incident").empty() == has_evidence);
    if (has_evidence) {
      const Instant later = kJudgedAt.mono + (2 * KillLadder::kReleaseLook - 1ms);
      CHECK(stage.verdicts.advance(later) == kJudgedAt.mono + KillLadder::kFactsLimit);
      CHECK(stage.records_of("incident").empty());
      stage.advance(kJudgedAt.mono + KillLadder::kFactsLimit);
      CHECK_FALSE(stage.only("incident").text("incident").empty());
    }
  }
}

TEST_CASE("Kills that are abandoned leave no incident without its record") {
  VerdictStage stage;
  stage.worker.facts->reset();
  stage.open(stage.worker, "forward");
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.records_of("incident").empty());
  stage.verdicts.abandon();
  CHECK(stage.only("incident").integer("workers") == 1);
}

TEST_CASE("A scope whose page is gone begins no incident") {
  VerdictStage stage;
  TestPage content;
  content.open(0, {.word = 5'000});
  stage.add_page(stage.worker, content);
  const auto due = stage.judge();
  REQUIRE(due.size() == 1);
  std::filesystem::resize_file(stage.folder.path("own"), 0);
  stage.carry_out(stage.worker, due);
  stage.advance();
  CHECK(stage.records_of("incident").empty());
  CHECK(stage.records_of("expired").empty());
}

TEST_CASE("An incident says where all workers are but those that are being killed") {
  VerdictStage stage;
  Worker& waits = stage.add_known_worker(made_up_process(kVictim + 1));
  for (int i = 0; i < 300; ++i) {
    stage.open(waits, fmt::format("s{}", i), 0, {9'000});
  }
  stage.add_known_worker(made_up_process(kVictim + 2));  // in no scope
  Worker& dying = stage.add_known_worker(made_up_process(kVictim + 3));
  stage.open(dying, "killed", 0, {9'000});
  dying.dying = true;
  stage.open(stage.worker, "forward", 0);
  stage.expire(stage.worker);
  stage.advance();
  const testing::Record incident = stage.only("incident");
  CHECK(incident.integer("workers") == 3);
  CHECK(incident.array("open_scopes").size() == 256 + 1);  // 1,024 among four workers
  CHECK(incident.integer("omitted") == 300 - 256);
  CHECK(incident.array("in_no_scope").size() == 1);
}

TEST_CASE("The peers of a worker are the others of its job, and the first signal waits for them") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.peer_evidence = EvidenceLevel::kProc;
  VerdictStage stage(settings);
  const auto add = [&](int rank, const std::string& job) -> Worker& {
    Worker& worker = stage.add_known_worker(made_up_process(kNoProcess + 10 + rank));
    (*worker.facts)->rank = rank;
    (*worker.facts)->job_id = job;
    return worker;
  };
  (*stage.worker.facts)->job_id = "8812";
  add(3, "8812");
  add(1, "8812");
  add(2, "8813");
  add(4, "");
  Worker& expired = add(5, "8812");
  stage.open(stage.worker, "load");
  stage.open(expired, "load");
  const auto due = stage.judge();
  stage.verdicts.carry_out(due, kJudgedAt);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.peers.is_running());
  CHECK(stage.verdicts.ladder().signals() == 0);
  stage.verdicts.advance(kJudgedAt.mono + settings.kill.evidence_timeout);
  CHECK_FALSE(stage.peers.is_running());
  std::vector<std::int64_t> ranks;
  for (const testing::Record& record : stage.records_of("peer_evidence")) {
    ranks.push_back(record.integer("rank"));
  }
  CHECK(ranks == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("A signal does not wait for the peers of another job") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.peer_evidence = EvidenceLevel::kProc;
  VerdictStage stage(settings);
  const auto add = [&](int rank, const std::string& job) -> Worker& {
    Worker& worker = stage.add_known_worker(made_up_process(kNoProcess + 10 + rank));
    (*worker.facts)->rank = rank;
    (*worker.facts)->job_id = job;
    return worker;
  };
  Worker& expired = add(1, "8812");
  add(2, "8812");
  Worker& other = add(3, "8813");
  Worker& without_job = stage.worker;
  for (Worker* const worker : {&expired, &other, &without_job}) {
    stage.open(*worker, "load");
  }
  const auto due = stage.judge();
  stage.verdicts.carry_out(due, kJudgedAt);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.peers.is_running_for("8812"));
  CHECK_FALSE(stage.peers.is_running_for("8813"));
  CHECK(stage.verdicts.ladder().signals() == 2);
  stage.verdicts.advance(kJudgedAt.mono + settings.kill.evidence_timeout);
  CHECK(stage.verdicts.ladder().signals() == 3);
}

// The waits are side by side, so the longest delay is one time limit and no sum.
TEST_CASE("Evidence of every kind that hangs delays a signal by one time limit") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.evidence = EvidenceLevel::kStacks;
  settings.evidence_command = "exec sleep 1000";
  VerdictStage stage(settings);
  const BusyThreads quick(stage.side_threads, SideThreads::Lane::kQuick);
  const BusyThreads recorders(stage.side_threads, SideThreads::Lane::kRecorders);
  Worker& peer = stage.add_known_worker(made_up_process(kNoProcess + 10));
  (*stage.worker.facts)->job_id = (*peer.facts)->job_id = "8812";
  RecorderFiles files;
  files.pipe = "/nowhere/0.pipe";
  (*stage.worker.facts)->recorder = std::make_shared<const RecorderFiles>(files);
  stage.open(stage.worker, "load");
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.peers.is_running_for("8812"));
  CHECK(stage.evidence_command.is_running(stage.records_of("expired").at(0).text("incident")));
  const Instant until = kJudgedAt.mono + settings.kill.evidence_timeout;
  CHECK(stage.verdicts.advance(until + -1ns) <= until);
  CHECK(stage.verdicts.ladder().signals() == 0);
  stage.verdicts.advance(until);
  CHECK(stage.verdicts.ladder().signals() == 1);
  const testing::Record evidence = stage.records_of("evidence").at(0);
  CHECK(evidence.text("missing").find("busy") != std::string::npos);
  CHECK(evidence.array("flight_recorder").size() == 1);
  stage.evidence_command.stop();
}

TEST_CASE("A worker that gets no signal leaves its peers alone") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.peer_evidence = EvidenceLevel::kProc;
  VerdictStage stage(settings);
  Worker& other = stage.add_known_worker(made_up_process(kNoProcess + 10));
  (*stage.worker.facts)->job_id = (*other.facts)->job_id = "8812";
  stage.open(stage.worker, "load", 0);
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK_FALSE(stage.peers.is_running());
  CHECK(stage.records_of("peer_evidence").empty());
}

TEST_CASE("A kill whose evidence an earlier server recorded leaves the peers alone") {
  for (const bool has_evidence : {true, false}) {
    CAPTURE(has_evidence);
    Settings settings = VerdictParts::worker_only();
    settings.kill.peer_evidence = EvidenceLevel::kProc;
    VerdictStage stage(settings);
    Worker& other = stage.add_known_worker(made_up_process(kNoProcess + 10));
    (*stage.worker.facts)->job_id = (*other.facts)->job_id = "8812";
    KillOrder order;
    order.worker = WorkerIdentity::of(stage.worker);
    order.is_recorded = true;
    order.has_evidence = has_evidence;
    Expiry expiry;
    expiry.id = "before-7";
    expiry.incident = "before-i1";
    expiry.scope.terms.signal = SIGKILL;
    order.expiries = {expiry};
    stage.verdicts.resume(stage.worker, std::move(order), kJudgedAt.mono);
    stage.verdicts.advance(kJudgedAt.mono);
    CHECK(stage.peers.is_running() != has_evidence);
  }
}

TEST_CASE("Peers wait for the job of a worker whose facts are not known yet") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.peer_evidence = EvidenceLevel::kProc;
  VerdictStage stage(settings);
  Worker& other = stage.add_known_worker(made_up_process(kNoProcess + 10));
  (*other.facts)->job_id = "8812";
  stage.worker.facts->reset();
  stage.open(stage.worker, "load");
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK_FALSE(stage.peers.is_running());
  stage.worker.facts->emplace();
  (*stage.worker.facts)->job_id = "8812";
  stage.advance(kJudgedAt.mono);
  CHECK(stage.peers.is_running());
  CHECK(stage.verdicts.ladder().signals() == 0);
}

TEST_CASE("Without a job id, peers are those with a rank") {
  Settings settings = VerdictParts::worker_only();
  settings.kill.peer_evidence = EvidenceLevel::kProc;
  VerdictStage stage(settings);
  Worker& other = stage.add_known_worker(made_up_process(kNoProcess + 10));
  stage.open(stage.worker, "load");
  SUBCASE("neither has one") {}
  SUBCASE("the expired worker has none") {
    (*other.facts)->rank = 1;
  }
  SUBCASE("both have one") {
    (*other.facts)->rank = 1;
    (*stage.worker.facts)->rank = 0;
  }
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  CHECK(stage.peers.is_running() == ((*stage.worker.facts)->rank && (*other.facts)->rank));
}

TEST_CASE("A warning that waits is recorded before the verdict on its worker") {
  VerdictStage stage;
  Warnings::Scope warning;
  warning.passed.reason = "why";
  warning.is_open = [] { return true; };
  stage.warnings.start(WorkerIdentity::of(stage.worker), {warning}, {4'000});
  stage.open(stage.worker, "forward", 0);
  stage.expire(stage.worker);
  stage.advance();
  CHECK(records_of_log(*stage.log, stage.folder).at(0).is("warned", kVictim));
}

TEST_CASE("With its signal a worker is dying, and its other scopes are cancelled") {
  VerdictStage stage;
  const Child child;  // a real one, which a signal reaches
  Worker& worker = stage.add_known_worker(std::move(*open_process(child.pid())));
  TestPage content;
  content.open(0, {.name = "own", .word = 9'000});
  stage.add_page(worker, content);
  stage.open(worker, "forward");
  stage.open(worker, "piped", SIGKILL, {9'000});
  stage.expire(worker);
  CHECK_FALSE(worker.dying);  // until the signal a release can cancel the kill
  CHECK(worker.pipe->has_open("piped"));
  stage.advance();
  CHECK(worker.dying);
  CHECK(worker.kills == 1);
  CHECK_FALSE(worker.pipe->has_open("piped"));
  stage.unsaved.save(stage.workers);
  CHECK_FALSE(worker.pipe->needs_save());
  REQUIRE(wait_for_zombie(child.pid()));
  stage.verdicts.ladder().note_worker_ended(*worker.process);
  stage.advance();
  const testing::Record killed = stage.only("killed");
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.strings("cancelled") == Cancelled{"piped", "own"});
  CHECK(stage.verdicts.killed() == 1);
  CHECK(stage.verdicts.killed_by_scope().values() == CountsByScope::Values{{"forward", 1}});
  CHECK(worker.kills == 0);
  CHECK(worker.dying);  // its scopes are not left open
}

TEST_CASE("A worker that may survive its signal is not dying, and keeps the scopes of its page") {
  VerdictStage stage;
  TestPage content;
  content.open(0, {.name = "own", .word = 9'000});
  stage.add_page(stage.worker, content);
  stage.open(stage.worker, "forward", SIGTERM);  // without a grace no SIGKILL follows
  stage.open(stage.worker, "piped", SIGTERM, {9'000});
  stage.expire(stage.worker);
  stage.advance();
  CHECK_FALSE(stage.worker.dying);
  CHECK_FALSE(stage.worker.pipe->has_open("piped"));
  stage.advance(Instant::now() + 31s);
  const testing::Record killed = stage.only("killed");
  CHECK(killed.text("verdict") == "spared");
  CHECK(killed.strings("cancelled") == Cancelled{"piped"});
  CHECK(stage.verdicts.killed() == 0);
}

TEST_CASE("A worker that is alive after SIGKILL is watched again, and counted while it lives") {
  VerdictStage stage;
  for (const std::string name : {"forward", "backward"}) {
    stage.open(stage.worker, name);
    stage.expire(stage.worker);
    stage.advance();
    CHECK(stage.worker.dying);
    stage.advance(Instant::now() + 31s);
    stage.advance(Instant::now() + 40s);
    CHECK_FALSE(stage.worker.dying);
    CHECK(stage.verdicts.unkillable() == 1);
  }
  CHECK(stage.records_of("killed").back().text("verdict") == "unkillable");
  CHECK(stage.verdicts.unkillable_by_scope().values() ==
        CountsByScope::Values{{"forward", 1}, {"backward", 1}});
  CHECK(stage.verdicts.killed() == 0);
  stage.end_worker();
  CHECK(stage.verdicts.unkillable() == 0);
}

TEST_CASE("The end of a kill frees the slot, and asks for a scan if its worker is still there") {
  VerdictStage stage;
  stage.open(stage.worker, "forward", 0);
  stage.expire(stage.worker);
  CHECK_FALSE(stage.verdicts.take_changed_scopes());
  CHECK_FALSE(stage.worker.pipe->is_empty());
  SUBCASE("it is") {
    stage.advance();
    CHECK(stage.worker.pipe->is_empty());
    CHECK(stage.worker.kills == 0);
    CHECK(stage.verdicts.take_changed_scopes());
    CHECK_FALSE(stage.verdicts.take_changed_scopes());
    CHECK(stage.only("killed").text("reason") == "signal 0");
  }
  SUBCASE("another process has its pid") {
    stage.workers.remove(stage.worker);
    Worker& next = stage.add_known_worker(made_up_process(kVictim));
    stage.open(next, "forward", 0, {9'000});
    stage.advance();
    CHECK(next.kills == 0);
    CHECK(next.pipe->has_open("forward"));
    CHECK_FALSE(stage.verdicts.take_changed_scopes());
    CHECK(stage.only("killed").text("reason") == "signal 0");
  }
}

TEST_CASE("A dry run records its verdicts and signals no worker") {
  VerdictStage stage(dry_run());
  stage.open(stage.worker, "forward");
  stage.open(stage.worker, "piped", SIGKILL, {9'000});
  stage.expire(stage.worker);
  stage.advance();
  CHECK(stage.only("expired").integer("signal") == SIGKILL);
  CHECK(stage.only("killed").text("reason") == "dry run");
  CHECK_FALSE(stage.worker.dying);
  CHECK(stage.worker.pipe->has_open("piped"));
}

TEST_CASE("The release of a spared scope of the pipe is a request, and not its free slot") {
  VerdictStage stage(dry_run());
  stage.open(stage.worker, "load");
  TestPage own;
  SUBCASE("a scope on the pipe") {}
  SUBCASE("a scope on a page") {
    own.open(0, {.name = "step", .word = kDeadline.ns});
    stage.add_page(stage.worker, own);
  }
  stage.expire(stage.worker);
  stage.advance(kJudgedAt.mono);
  for (const testing::Record& killed : stage.records_of("killed")) {
    CHECK(killed.text("verdict") == "spared");
  }
  CHECK(stage.overdue.count() == stage.records_of("killed").size());
  stage.overdue.advance(kJudgedAt.mono + 1h);
  stage.overdue.note_request(*stage.worker.process, "another", kJudgedAt.mono + 1h);
  CHECK(stage.records_of("released_late").empty());
  stage.overdue.note_request(*stage.worker.process, "load", kJudgedAt.mono + 2s);
  const testing::Record released = stage.only("released_late");
  CHECK(released.text("scope") == "load");
  CHECK(released.number("late_ms") == doctest::Approx(2000).epsilon(0.01));
}

TEST_CASE("A release after the verdict and before the signal spares the worker") {
  VerdictStage stage;
  stage.open(stage.worker, "forward");
  SUBCASE("carried out before it") {
    stage.expire(stage.worker);
    stage.worker.pipe->release("forward");
  }
  SUBCASE("carried out after it") {
    const auto due = stage.judge();
    stage.worker.pipe->release("forward");
    stage.carry_out(stage.worker, due);
  }
  stage.advance();
  CHECK(stage.only("expired").text("scope") == "forward");
  CHECK(stage.only("released_late").text("scope") == "forward");
  CHECK(stage.verdicts.ladder().released_late().values() == CountsByScope::Values{{"forward", 1}});
  CHECK(stage.only("killed").text("reason") == "released late, but before the signal");
  CHECK_FALSE(stage.worker.dying);
}

TEST_CASE("A verdict whose slot holds another scope by now is not carried out") {
  VerdictStage stage;
  stage.open(stage.worker, "forward");
  const auto due = stage.judge();
  stage.worker.pipe->finish(due.at(0).place.slot, due.at(0).place.word);
  stage.open(stage.worker, "backward", SIGKILL, {9'000});
  stage.carry_out(stage.worker, due);
  CHECK(stage.verdicts.ladder().idle());
  CHECK(stage.verdicts.expired() == 0);
  CHECK(stage.worker.kills == 0);
}

TEST_CASE("A worker that works again after its idle timeout is spared") {
  VerdictStage stage;
  TestPage idle = idle_page({3'000}, 2us);
  stage.add_page(stage.worker, idle);
  const auto mapping =
      MappedFile::map(stage.folder.path("own"), MappedFile::Access::kReadWrite, kPageBytes);
  Slot& left_slot = PageLayout(mapping->data()).slot(1);
  stage.expire(stage.worker);
  REQUIRE(stage.verdicts.expired() == 1);
  bool is_spared = true;
  SUBCASE("it is in a scope of the pipe") {
    stage.open(stage.worker, "forward", SIGKILL, {9'000});
  }
  SUBCASE("it is in a scope of its page") {
    left_slot.deadline = 9'000;
  }
  SUBCASE("it has left a scope of the pipe since") {
    stage.worker.left_on_pipe = kDeadline + 1ns;
  }
  SUBCASE("it has left a scope of its page since") {
    left_slot.left = kDeadline.ns + 1;
  }
  SUBCASE("it has not, since it has left its last one before") {
    stage.worker.left_on_pipe = kDeadline;
    is_spared = false;
  }
  stage.advance();
  CHECK(stage.worker.dying != is_spared);
  CHECK(stage.records_of("released_late").size() == (is_spared ? 1 : 0));
}

TEST_CASE("A kill that an earlier server has recorded is carried out without a second verdict") {
  VerdictStage stage;
  stage.open(stage.worker, "forward");
  const auto due = stage.judge();
  KillOrder order;
  order.is_recorded = true;
  order.worker = WorkerIdentity::of(stage.worker);
  Expiry expiry;
  expiry.id = "before-7";
  expiry.scope.name = "forward";
  expiry.scope.terms = terms_between({1'000}, kDeadline);
  expiry.place = due.at(0).place;
  order.expiries = {expiry};
  stage.verdicts.resume(stage.worker, std::move(order), kJudgedAt.mono);
  CHECK(stage.worker.kills == 1);
  CHECK(stage.verdicts.expired() == 0);
  stage.advance();
  CHECK(stage.worker.dying);
  stage.end_worker();
  stage.advance();
  CHECK(stage.only("killed").text("id") == "before-7");
  CHECK(stage.records_of("expired").empty());
  CHECK(stage.records_of("incident").empty());
}

TEST_CASE("A kill that has ended starts one hook, for its earliest deadline") {
  VerdictStage stage;
  stage.open(stage.worker, "later", 0, {4'000});
  stage.open(stage.worker, "first", 0, {3'000});
  stage.expire(stage.worker);
  stage.advance();
  const testing::Record expired = stage.records_of("expired").at(0);
  const testing::Record hook = stage.only("hook");
  CHECK(hook.text("scope") == "first");
  CHECK(hook.text("id") == expired.text("id"));
  CHECK(hook.text("incident") == expired.text("incident"));
  CHECK(hook.integer("pid") == kVictim);
}

TEST_CASE("The first page with a dump signal says how to get the Python stacks") {
  VerdictStage stage;
  stage.open(stage.worker, "piped");
  TestPage content;
  stage.add_page(stage.worker, content, "none");
  CHECK_FALSE(stage.verdicts.python_dump_of(stage.worker));
  content.header().dump_signal = SIGUSR1;
  stage.add_page(stage.worker, content, "python");
  content.header().dump_signal = SIGUSR2;
  stage.add_page(stage.worker, content, "another");
  const auto dump = stage.verdicts.python_dump_of(stage.worker);
  REQUIRE(dump);
  CHECK(dump->signal == SIGUSR1);
  CHECK(dump->path == stage.page_folder.stacks_path("python"));
}
