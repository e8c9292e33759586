// The ladder with real processes and injected time.
// SPDX-License-Identifier: MIT
#include "timer_server/kills/kill_ladder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/files.hpp"
#include "tests/timer_server/kills/worker_with_child.hpp"
#include "tests/timer_server/process_of.hpp"
#include "tests/timer_server/test_log.hpp"
#include "timer_server/system/hardening.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// A worker to kill, and everything below a server that a ladder needs.
struct LadderStage {
  explicit LadderStage(
      KillPolicy policy = quick(), const std::function<void()>& worker_does_first = [] {},
      const MayBeForking& may_be_forking = filetimer::may_be_forking)
      : worker(worker_does_first),
        process(process_of(worker)),
        ladder(make(policy, may_be_forking)) {}

  static KillPolicy quick() {
    KillPolicy policy;
    policy.evidence = EvidenceLevel::kNone;
    return policy;
  }

  // With this policy a kill is recorded and waits for its evidence until kEvidenceLimit.
  static constexpr Duration kEvidenceLimit = 60s;
  static KillPolicy waiting() {
    KillPolicy policy;
    policy.evidence = EvidenceLevel::kProc;
    policy.evidence_timeout = kEvidenceLimit;
    return policy;
  }

  KillOrder order_for(int signal, std::optional<Duration> grace = {}) {
    return order_for(process.pid, signal, grace);
  }
  KillOrder order_for(pid_t pid, int signal, std::optional<Duration> grace) {
    KillOrder order;
    order.worker.process = std::make_shared<const Process>(std::move(*open_process(pid)));
    order.worker.facts = std::make_shared<std::optional<WorkerFacts>>(WorkerFacts{});
    Expiry expiry;
    expiry.id = records.next_expiry_id();
    expiry.incident = "i1";
    expiry.scope.name = "forward";
    expiry.scope.terms.signal = signal;
    expiry.scope.terms.grace = grace_of(grace);
    order.expiries = {expiry};
    return order;
  }

  // Calls advance() after the handlers of what has happened.
  Instant step(Instant at) {
    while (::sd_event_run(loop.get(), 0) > 0) {
    }
    return ladder->advance(at);
  }
  // The same before and after the log has synced its records.
  Instant advance(Instant at) {
    step(at);
    REQUIRE(log->drain(10s));
    return step(at);
  }

  // The events of the log, in order.
  std::string events() {
    std::string all;
    for (const testing::Record& record : records_of_log(*log, folder)) {
      all += (all.empty() ? "" : " ") + record.text("event");
    }
    return all;
  }
  // The only record of that event.
  testing::Record the(std::string_view event) {
    testing::Records found = records_of_log(*log, folder);
    std::erase_if(found, [&](const testing::Record& record) { return !record.is(event); });
    REQUIRE(found.size() == 1);
    return found.front();
  }

  void start(int signal, std::optional<Duration> grace = {}) {
    start(order_for(signal, grace), now);
  }
  // Watches the worker as its owner does.
  void start(KillOrder order, Instant at) {
    const auto& killed = order.worker.process;
    EventSource& end = ends_of_workers[killed.get()];
    if (!end) {
      end = watch_io(loop.get(), killed->pidfd.get(), EPOLLIN | EPOLLET, kDeathsFirst,
                     [this, killed] { ladder->note_worker_ended(*killed); });
    }
    ladder->start(std::move(order), at);
  }

  Child worker;
  const Process process;
  const Instant now = Instant::now();
  EventLoop loop = make_event_loop();
  std::map<const Process*, EventSource> ends_of_workers;
  testing::TempFolder folder;
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Records records{RecordOrigin::of_this_process()};
  SideThreads side_threads;
  std::vector<KillVerdict> ended;
  std::set<std::string> released;       // scopes, by name
  std::vector<WorkerIdentity> others;   // of the job
  std::vector<bool> signals_announced;  // `is_final`, for each call of on_signal
  std::unique_ptr<KillLadder> ladder;

 private:
  std::unique_ptr<KillLadder> make(KillPolicy policy, const MayBeForking& may_be_forking) {
    return std::make_unique<KillLadder>(
        loop.get(), policy, records, *log, side_threads,
        KillLadder::Listener{.was_released =
                                 [this](const Process&, const Expiry& expiry) {
                                   return released.contains(expiry.scope.name);
                                 },
                             .on_signal =
                                 [this](const Process&, bool is_final) {
                                   signals_announced.push_back(is_final);
                                   return std::vector<std::string>{"outer"};
                                 },
                             .on_end = [this](const KillOrder&,
                                              const KillEnd& end) { ended.push_back(end.verdict); },
                             .others_of_job = [this](const WorkerIdentity&) { return others; }},
        may_be_forking);
  }
};

void wait_until_readable(int fd) {
  pollfd poll{fd, POLLIN, 0};
  REQUIRE(::poll(&poll, 1, 10'000) == 1);
}

void wait_for_death(const Process& process) {
  wait_until_readable(process.pidfd.get());
}

void ignore_sigterm() {
  ::signal(SIGTERM, SIG_IGN);
}

void block_signal(int signal) {
  sigset_t set{};
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

// Returns whether a signal that the process blocks is pending.
bool has_got(pid_t pid, int signal) {
  const std::string status = testing::read_file(fmt::format("/proc/{}/status", pid));
  const std::string_view key = "ShdPnd:\t";
  const std::size_t at = status.find(key);
  REQUIRE(at != status.npos);
  const std::uint64_t pending = std::stoull(status.substr(at + key.size(), 16), nullptr, 16);
  return ((pending >> (signal - 1)) & 1U) != 0;
}

}  // namespace

TEST_CASE("A worker is signalled only after the verdict is on disk") {
  LadderStage stage(LadderStage::quick(), [] { block_signal(SIGTERM); });
  // A large record keeps the log busy, so that the verdict is not on disk at once.
  stage.log->append(fmt::format("\"{}\"", std::string(std::size_t{8} << 20, 'x')));
  stage.start(SIGTERM, 5s);
  stage.step(stage.now);
  const bool was_signalled = has_got(stage.process.pid, SIGTERM);
  const std::uint64_t synced = stage.log->synced();
  // The first record is the one above, the second the verdict.
  CHECK((!was_signalled || synced >= 2));
  REQUIRE(stage.log->drain(10s));
  stage.step(stage.now);
  CHECK(has_got(stage.process.pid, SIGTERM));
}

TEST_CASE("A kill is recorded as verdict and outcome, and ends with the death of the worker") {
  LadderStage stage;
  stage.start(SIGKILL);
  stage.advance(stage.now);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.step(stage.now + 1ms);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(stage.events() == "expired killed");
  CHECK(stage.ladder->idle());
}

TEST_CASE("The verdicts of one iteration are recorded together") {
  LadderStage stage;
  const Child second;
  KillOrder one = stage.order_for(SIGKILL);
  KillOrder other = stage.order_for(second.pid(), SIGKILL, {});
  stage.start(std::move(one), stage.now);
  stage.start(std::move(other), stage.now);
  stage.step(stage.now);
  REQUIRE(stage.log->drain(10s));
  std::uint64_t syncs = 0;
  wait_until_readable(stage.log->event_fd());
  REQUIRE(::read(stage.log->event_fd(), &syncs, sizeof syncs) == sizeof syncs);
  CHECK(syncs == 1);
  CHECK(stage.events() == "expired expired");
}

TEST_CASE("A kill waits at most 100 ms for the command line and rank of the worker") {
  for (const bool is_read_in_time : {true, false}) {
    CAPTURE(is_read_in_time);
    LadderStage stage;
    KillOrder order = stage.order_for(SIGKILL);
    const FactsCell facts = std::make_shared<std::optional<WorkerFacts>>();
    order.worker.facts = facts;
    stage.start(std::move(order), stage.now);
    CHECK(stage.advance(stage.now) == stage.now + 100ms);
    stage.advance({(stage.now + 100ms).ns - 1});
    CHECK(stage.events().empty());
    CHECK(stage.process.is_alive());
    if (is_read_in_time) {
      WorkerFacts known;
      known.rank = 3;
      *facts = known;
      stage.advance(stage.now);
      CHECK(stage.the("expired").integer("rank") == 3);
    } else {
      stage.advance(stage.now + 100ms);
      CHECK_FALSE(stage.the("expired").has("rank"));
    }
    wait_for_death(stage.process);
  }
}

TEST_CASE("Children are signalled before their parents") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  LadderStage stage(LadderStage::quick(), [&] {
    const pid_t child = fork_waiting([&] {
      const pid_t grandchild = fork_waiting([] {});
      (void)!::write(ends[1], &grandchild, sizeof grandchild);
    });
    (void)!::write(ends[1], &child, sizeof child);
  });
  std::array<pid_t, 2> below{};  // the grandchild is the first one
  REQUIRE(::read(ends[0], below.data(), sizeof below) == sizeof below);
  ::close(ends[0]);
  ::close(ends[1]);
  stage.start(SIGKILL);
  stage.advance(stage.now);
  wait_for_death(stage.process);
  stage.worker.reap();
  stage.step(stage.now + 31s);
  // A record names them in the opposite order: the worker first.
  CHECK(stage.the("killed").pids_of_signal(0) ==
        std::vector<pid_t>{stage.process.pid, below[1], below[0]});
}

TEST_CASE("A kill ends with the last of its targets, before its next step is due") {
  WorkerWithChild worker;
  LadderStage stage;
  stage.start(stage.order_for(worker->pid(), SIGTERM, 5s), stage.now);
  stage.advance(stage.now);
  CHECK(worker->reap() == SIGTERM);
  stage.step(stage.now);
  CHECK(stage.ended.empty());
  CHECK(worker.child.send_signal(SIGKILL));
  wait_for_death(worker.child);
  stage.step(stage.now);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
}

TEST_CASE("A kill opens one descriptor for each target beside the worker, and closes it") {
  WorkerWithChild worker;
  LadderStage stage;
  KillOrder order = stage.order_for(worker->pid(), SIGTERM, 5s);
  const std::size_t before = open_descriptors();
  stage.start(std::move(order), stage.now);
  stage.advance(stage.now);
  CHECK(open_descriptors() == before + 1);
  CHECK(worker->reap() == SIGTERM);
  CHECK(worker.child.send_signal(SIGKILL));
  wait_for_death(worker.child);
  stage.step(stage.now);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(open_descriptors() == before);
}

TEST_CASE("SIGKILL follows when the grace period has passed, and not before") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM, 5s);
  const Instant next = stage.advance(stage.now);
  CHECK(next - stage.now >= 5s);
  stage.step({next.ns - 1});
  CHECK(stage.process.is_alive());
  stage.step(next);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.step(next);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(stage.the("killed").signals() == std::vector<int>{SIGTERM, SIGKILL});
}

TEST_CASE("A grace period is extended by the time that the server missed") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM, 5s);
  const Instant end_of_grace = stage.advance(stage.now);
  stage.ladder->extend_grace(10s);
  CHECK(stage.step(end_of_grace) == end_of_grace + 10s);
  stage.step({(end_of_grace + 10s).ns - 1});
  CHECK(stage.process.is_alive());
  stage.step(end_of_grace + 10s);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
}

TEST_CASE("A release in the grace period cancels the kill of a scope that may be left late") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  stage.start(std::move(order), stage.now);
  CHECK(stage.advance(stage.now) == stage.now + KillLadder::kReleaseLook);
  stage.released.insert("forward");
  stage.step(stage.now + 1s);
  CHECK(stage.process.is_alive());
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
  CHECK(stage.events() == "expired released_late killed");
  CHECK(stage.the("killed").text("reason") == "released within the grace period");
  // The worker's other scopes stay open.
  CHECK(stage.signals_announced.empty());
  CHECK_FALSE(stage.the("killed").has("cancelled"));
}

TEST_CASE("A worker that releases such a scope and then exits did not die of the signal") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  stage.start(std::move(order), stage.now);
  stage.advance(stage.now);
  stage.released.insert("forward");
  stage.worker.end();
  stage.step(stage.now + 1s);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
}

TEST_CASE("A worker that does not release such a scope is killed after the grace period") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  stage.start(std::move(order), stage.now);
  stage.advance(stage.now);
  CHECK(stage.signals_announced.empty());
  const Instant next = stage.now + 6s;  // after the grace period
  stage.step(next);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.step(next);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(stage.signals_announced == std::vector{true});
  CHECK(stage.the("killed").strings("cancelled") == std::vector<std::string>{"outer"});
}

TEST_CASE("Two scopes that may be left late are waited for, each for its own grace period") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder outer = stage.order_for(SIGTERM, 5s);
  outer.expiries.front().scope.terms.spare_if_left = true;
  KillOrder inner = stage.order_for(SIGTERM, 60s);
  inner.worker = outer.worker;
  inner.expiries.front().scope.name = "inner";
  inner.expiries.front().scope.terms.spare_if_left = true;
  stage.start(std::move(outer), stage.now);
  stage.advance(stage.now);
  const Instant next = stage.now + 6s;  // after the grace period
  stage.start(std::move(inner), stage.now + 1s);
  stage.advance(stage.now + 1s);
  stage.released.insert("inner");
  stage.step(stage.now + 2s);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
  stage.step(next);  // the outer one was not left
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
  stage.step(next);
  CHECK(stage.ended == std::vector{KillVerdict::kSpared, KillVerdict::kDead});
}

TEST_CASE("A kill waits for the SIGKILL of another one of its worker, and ends with it") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder first = stage.order_for(SIGTERM, 5s);
  KillOrder second = stage.order_for(SIGTERM, 60s);
  second.worker = first.worker;
  stage.start(std::move(first), stage.now);
  stage.advance(stage.now);
  stage.start(std::move(second), stage.now + 1s);
  stage.advance(stage.now + 1s);
  CHECK(stage.ended.empty());
  CHECK(stage.ladder->count() == 2);
  const Instant after_grace = stage.now + 6s;
  stage.step(after_grace);
  wait_for_death(stage.process);
  stage.step(after_grace);
  CHECK(stage.ended == std::vector{KillVerdict::kDead, KillVerdict::kAlreadyGone});
  CHECK(stage.ladder->idle());
}

TEST_CASE("A scope that may be left late does not soften another one that expires with it") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  KillOrder order = stage.order_for(SIGTERM, 5s);
  order.expiries.front().scope.terms.spare_if_left = true;
  order.expiries.push_back(order.expiries.front());
  order.expiries.back().scope.name = "other";
  order.expiries.back().scope.terms.spare_if_left = false;
  order.expiries.back().scope.terms.signal = SIGKILL;
  stage.start(std::move(order), stage.now);
  stage.advance(stage.now);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
}

TEST_CASE("A release before the signal cancels the kill") {
  LadderStage stage(LadderStage::waiting());
  stage.start(SIGKILL);
  stage.step(stage.now);
  stage.released.insert("forward");
  stage.step(stage.now);
  CHECK(stage.events() == "expired released_late");  // as soon as it is seen, and once
  stage.advance(stage.now + LadderStage::kEvidenceLimit);
  CHECK(stage.process.is_alive());
  CHECK(stage.ended == std::vector{KillVerdict::kSpared});
  CHECK(stage.events() == "expired released_late evidence killed");
}

TEST_CASE("A release after the signal changes nothing") {
  LadderStage stage;
  stage.start(SIGKILL);
  stage.advance(stage.now);
  stage.released.insert("forward");
  wait_for_death(stage.process);
  stage.step(stage.now);
  CHECK(stage.ended == std::vector{KillVerdict::kDead});
  CHECK(stage.events().find("released_late") == std::string::npos);
}

TEST_CASE("Of two expired scopes the one that was not released still kills, with its own signal") {
  LadderStage stage(LadderStage::waiting());
  KillOrder order = stage.order_for(SIGTERM);
  order.expiries.push_back(order.expiries.front());
  order.expiries.back().scope.name = "outer";
  order.expiries.back().scope.terms.signal = SIGKILL;
  stage.start(std::move(order), stage.now);
  stage.step(stage.now);
  stage.released.insert("forward");
  stage.advance(stage.now + LadderStage::kEvidenceLimit);
  wait_for_death(stage.process);
  CHECK(stage.worker.reap() == SIGKILL);
}

TEST_CASE("Evidence is recorded between the verdict and the signal") {
  KillPolicy policy = LadderStage::quick();
  policy.evidence = EvidenceLevel::kProc;
  policy.evidence_timeout = 60s;
  LadderStage stage(policy);
  stage.start(SIGKILL);
  stage.advance(stage.now);
  CHECK(stage.process.is_alive());
  while (stage.events() == "expired") {
    CHECK(stage.process.is_alive());
    pollfd poll{stage.side_threads.event_fd(), POLLIN, 0};
    REQUIRE(::poll(&poll, 1, 10'000) == 1);
    stage.side_threads.deliver();
  }
  stage.step(stage.now);
  wait_for_death(stage.process);
  stage.step(stage.now);
  CHECK(stage.events() == "expired evidence killed");
}

TEST_CASE("Of a job 64 ranks are asked for dumps, and the others are counted") {
  KillPolicy policy = LadderStage::quick();
  policy.evidence = EvidenceLevel::kProc;
  policy.evidence_timeout = 60s;
  LadderStage stage(policy);
  KillOrder order = stage.order_for(SIGKILL);
  const auto facts_of = [&](int rank) {
    WorkerFacts facts;
    facts.rank = rank;
    facts.recorder = std::make_shared<RecorderFiles>(
        RecorderFiles{stage.folder.path(fmt::format("{}.pipe", rank)), {"/nowhere"}, {}});
    return std::make_shared<std::optional<WorkerFacts>>(facts);
  };
  order.worker.facts = facts_of(70);
  // Rank 70 comes twice, as a worker and its data loader do.
  for (int rank = 70; rank >= 0; --rank) {
    stage.others.push_back({order.worker.process, facts_of(rank)});
  }
  stage.start(std::move(order), stage.now);
  stage.advance(stage.now);
  while (stage.events() == "expired") {
    wait_until_readable(stage.side_threads.event_fd());
    stage.side_threads.deliver();
    stage.step(stage.now);
  }
  const testing::Record evidence = stage.the("evidence");
  const auto dumps = evidence.array("flight_recorder");
  REQUIRE(dumps.size() == FlightRecording::kMaxRanks);
  CHECK(dumps.at(0)["rank"].get_int64().value() == 70);
  CHECK(dumps.at(1)["rank"].get_int64().value() == 0);
  CHECK(dumps.at(63)["rank"].get_int64().value() == 62);
  CHECK(
      testing::contains(dumps.at(0)["missing"].get_string().value(), "No such file or directory"));
  CHECK(evidence.integer("flight_recorder_omitted") == 7);
}

TEST_CASE("In a dry run an expiry has evidence at the level of --evidence") {
  KillPolicy policy = LadderStage::quick();
  policy.dry_run = true;
  policy.evidence = EvidenceLevel::kProc;
  policy.warn_evidence = EvidenceLevel::kNone;
  policy.evidence_timeout = 60s;
  LadderStage stage(policy);
  stage.start(SIGKILL);
  stage.advance(stage.now);
  while (stage.events() == "expired") {
    pollfd poll{stage.side_threads.event_fd(), POLLIN, 0};
    REQUIRE(::poll(&poll, 1, 10'000) == 1);
    stage.side_threads.deliver();
  }
  stage.step(stage.now);
  CHECK(stage.events() == "expired evidence killed");
  CHECK_FALSE(stage.the("evidence").array("threads").size() == 0);
  CHECK(stage.process.is_alive());
}

TEST_CASE("Evidence that does not come delays the signal by its time limit") {
  KillPolicy policy = LadderStage::quick();
  policy.evidence = EvidenceLevel::kProc;
  policy.evidence_timeout = 3s;
  LadderStage stage(policy);
  stage.start(SIGKILL);
  stage.advance(stage.now);  // nothing is delivered
  CHECK(stage.step(stage.now + 2990ms) == stage.now + 3s);
  CHECK(stage.events() == "expired");
  stage.step(stage.now + 3s);
  wait_for_death(stage.process);
  CHECK(stage.events().starts_with("expired evidence"));
  CHECK(testing::contains(stage.the("evidence").text("missing"), "time was up"));
}

TEST_CASE("Without grace periods SIGKILL follows at once") {
  LadderStage stage(LadderStage::quick(), ignore_sigterm);
  stage.start(SIGTERM, 1h);
  stage.advance(stage.now);
  stage.ladder->shorten_waits(stage.now);
  stage.step(stage.now);
  wait_for_death(stage.process);
}

TEST_CASE("A kill of a server that stops waits for evidence for a short time only") {
  constexpr Duration kLimit = KillLadder::kShortEvidenceLimit;
  LadderStage stage(LadderStage::waiting());
  SUBCASE("and so does one that had begun before") {
    stage.start(SIGKILL);
    stage.advance(stage.now);
    stage.ladder->shorten_waits(stage.now);
  }
  SUBCASE("and so does one that begins later") {
    stage.ladder->shorten_waits(stage.now);
    stage.start(SIGKILL);
    stage.advance(stage.now);
  }
  CHECK(stage.step(stage.now + (kLimit - 1ms)) == stage.now + kLimit);
  CHECK(stage.process.is_alive());
  stage.step(stage.now + kLimit);
  wait_for_death(stage.process);
}

TEST_CASE("A release is recorded soon while the kill waits for evidence") {
  LadderStage stage(LadderStage::waiting());
  stage.start(SIGKILL);
  const Instant next = stage.advance(stage.now);
  CHECK(next == stage.now + KillLadder::kReleaseLook);
  stage.released.insert("forward");
  stage.step(next);
  CHECK(stage.events() == "expired released_late");
}

TEST_CASE(
    "A fork that is under way when the worker is stopped is waited for, and its child is killed") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_NONBLOCK) == 0);
  SteppedChild worker({[&] {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      end_with(parent);
      for (;;) {
        ::pause();
      }
    }
    return ::write(ends[1], &child, sizeof child) == sizeof child;
  }});
  // The first look is before SIGSTOP; the fork is over before the second one.
  int looks = 0;
  const auto look = [&](pid_t pid) {
    if (pid != worker.pid() || ++looks != 2) {
      return pid == worker.pid() && looks == 1;
    }
    ::kill(pid, SIGCONT);
    CHECK(worker.next());
    ::kill(pid, SIGSTOP);
    return false;
  };
  LadderStage stage(
      LadderStage::quick(), [] {}, look);
  stage.start(stage.order_for(worker.pid(), SIGKILL, {}), stage.now);
  stage.advance(stage.now);
  worker.end();
  // The child may not have died yet.
  const Instant until = Instant::now() + testing::kBound;
  while (stage.ended.empty()) {
    REQUIRE(Instant::now() < until);
    stage.step(stage.now + 31s);
    ::sched_yield();
  }
  CHECK(stage.the("killed").pids_of_signal(0).size() == 2);
  ::close(ends[1]);
  pid_t child = 0;
  CHECK(::read(ends[0], &child, sizeof child) == sizeof child);
  ::close(ends[0]);
  CHECK(stage.the("killed").pids_of_signal(0).back() == child);
}

TEST_CASE("No worker of an iteration is signalled before all of them are stopped") {
  pid_t first = 0;
  bool was_early = false;
  const auto look = [&](pid_t) {
    was_early = was_early || has_got(first, SIGTERM);
    return false;
  };
  LadderStage stage(
      LadderStage::quick(), [] { block_signal(SIGTERM); }, look);
  first = stage.process.pid;
  const Child second;
  stage.start(SIGTERM, 5s);
  stage.start(stage.order_for(second.pid(), SIGTERM, 5s), stage.now);
  stage.advance(stage.now);
  CHECK(has_got(first, SIGTERM));
  CHECK_FALSE(was_early);
}

TEST_CASE("Processes that do not stop delay all kills of an iteration by a bounded time together") {
  constexpr int kWorkers = 64;
  LadderStage stage(
      LadderStage::quick(), [] {}, [](pid_t) { return true; });
  std::vector<std::unique_ptr<Child>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<Child>());
    stage.start(stage.order_for(workers.back()->pid(), SIGKILL, {}), stage.now);
    if (i == 0) {
      const Instant begun = Instant::now();
      stage.advance(stage.now);
      CHECK(Instant::now() - begun >= 30ms);
    }
  }
  const Instant begun = Instant::now();
  stage.advance(stage.now);
  CHECK(Instant::now() - begun < kWorkers * 30ms / 2);
  for (auto& worker : workers) {
    CHECK(worker->reap() == SIGKILL);
  }
}
