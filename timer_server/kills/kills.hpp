// Kills: what follows when scopes of a worker have expired, up to the outcome.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"
#include "timer_server/kills/commands.hpp"
#include "timer_server/kills/incidents.hpp"
#include "timer_server/kills/kill_targets.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

// Carries out the verdicts of scans: one kill for each worker. The stages of a kill, and what ends
// each of them:
//
//   kFacts         the worker's command line and rank are known, or kFactsLimit has passed. The
//                  verdict is then in a kill file and queued in the log.
//   kRecorded      the evidence is collected, and that of its incident and its job; or the time
//                  limit of evidence has passed. A late release, another program of the worker,
//                  --dry-run or signal 0 ends the kill: spared. So does the end of the worker:
//                  already gone.
//   kStopping      all targets have stopped, or kStopLimit has passed. The signal follows in the
//                  same advance(), unless a late release came before it: kRecorded.
//   kSignalled     the grace period has passed: SIGKILL, by kStopping; as kKilled, if a server with
//                  --dry-run continues the kill. All targets have exited: dead, or already gone, if
//                  none of them got a signal.
//   kKilled        all targets have exited: likewise. --kill-wait has passed, or another scope of
//                  the worker is due: dead, if the worker has exited; spared, if no SIGKILL was
//                  sent; else kLastEvidence.
//   kLastEvidence  the evidence of what holds a worker after SIGKILL is collected: unkillable.
//   kEnded         the outcome is recorded.
//
// A kill that an earlier server has begun starts at kFacts, or after its last signal.
// A worker has one kill at a time. Until it has ended, no other scope of the worker is judged. If
// one is due and the kill does not lead to SIGKILL, the kill takes no more than kShortWait for each
// of its waits.
//
// No member function waits, except for the kStopLimit before a signal: advance() takes every kill
// as far as it can go now. No step waits for the log. The ends of processes that were signalled
// wake the loop, and their handlers note that only.
class Kills {
 public:
  // How long the first signal waits for evidence at most when the server is stopping, or another
  // scope of the worker is due. In the second case also how long the worker has to die of a signal
  // that SIGKILL does not follow.
  static constexpr Duration kShortWait = std::chrono::milliseconds{500};
  // How long all kills of one advance() wait together until their targets have stopped, so that
  // many kills do not delay deadlines. On an idle machine that takes microseconds.
  static constexpr Duration kStopLimit = std::chrono::milliseconds{30};
  // The most workers whose CPU times are read at once before their deadlines.
  static constexpr std::size_t kMostSampled = 64;
  // The most of them for which a stacks helper reads the files of their code then.
  static constexpr std::size_t kMostHelpers = 8;

  Kills(Core& core, Warnings& warnings, Commands& commands);

  // Begins the evidence of workers with a deadline within CpuSample::kLead.
  void sample(std::span<Worker* const> workers, Instant now);
  // Walks the way to the first signal of such a kill without an effect, so that the caches of the
  // processor have the code and the kernel's data of the worker.
  void rehearse(const Worker& worker);
  // Starts a kill of each worker with a verdict. `now` is when the scopes were judged. Shortens the
  // waits of the kills that hold up other scopes. Returns whether it has started all kills; if not,
  // take_back_lost_verdicts() must follow.
  bool carry_out(const DeadlineScan::Found& found, const ClockReading& now);
  // Takes back the verdicts that no kill carries out: the iteration that gave them has failed. The
  // next scan gives them again.
  void take_back_lost_verdicts();
  // Begins a kill, or continues one that an earlier server has begun. `worker`: null if it has
  // exited, and others that it has started may not have.
  void start(Worker* worker, KillState order, Instant now);
  // Records the outcome of a kill that needs no step, with the signals and the cancelled scopes of
  // the order.
  void end(const KillState& order, const Records::Outcome& outcome) {
    finish(order, outcome, record_outcome(order, outcome));
  }
  // Starts the hook for a kill that has ended. `record_number`: of its last `killed` record.
  void start_hook(const KillState& order, KillVerdict verdict, std::uint64_t record_number);

  // Takes all kills as far as they can go. Returns when it must be called again at the latest; it
  // must also be called when the log or the evidence desk has news, and when the loop has called a
  // handler. A grace period or a wait for deaths has ended only if it had ended at `woke`, when the
  // loop woke: after a later stop of the server the next iteration calls extend_grace() first.
  Instant advance(Instant now, Instant woke);
  // Takes note that a worker has ended, whose pages are still there. The owner of the workers
  // watches their pidfds, the kills those of the other targets: a loop can watch a descriptor once.
  void note_worker_ended(const Process& worker);

  // Returns the shortest grace period that runs; kForever: none does.
  [[nodiscard]] Duration shortest_grace() const;
  // Extends grace periods and waits for deaths by the time that the server or the machine missed.
  void extend_grace(Duration missed);
  // Ends all grace periods, and shortens the waits for evidence to kShortWait: from now
  // on SIGKILL follows the first signal at once. The same holds for kills that begin later. Called
  // when the server begins to stop.
  void shorten_waits(Instant now);
  // Ends all kills with the outcome that they have now. One whose verdict is not recorded yet is
  // left to the next server. Called when the server stops, and again after an exception.
  void abandon();

  // Returns the processes that no kill signals: the server and its ancestors.
  [[nodiscard]] std::span<const pid_t> excluded() const { return excluded_; }
  [[nodiscard]] bool idle() const { return kills_.empty(); }
  [[nodiscard]] std::size_t count() const { return kills_.size(); }
  // Returns the number of workers that are alive after SIGKILL.
  [[nodiscard]] std::size_t unkillable() const;

 private:
  // How long a look for the server's ancestors holds. rehearse() looks before a deadline, because
  // it takes as long as all else until the signal.
  static constexpr Duration kAncestorsHold = std::chrono::seconds{1};

  enum class Stage { kFacts, kRecorded, kStopping, kSignalled, kKilled, kLastEvidence, kEnded };
  struct Kill {
    Kill(KillState the_order, KillMode mode, std::vector<pid_t> excluded)
        : order(std::move(the_order)),
          targets(order.worker.process, mode, std::move(excluded)),
          noted(order.sent.size()) {}

    KillState order;
    KillTargets targets;
    std::size_t noted;  // how many of the signals are in the kill's file
    Stage stage = Stage::kFacts;
    bool is_stopped = false;                // the targets are, or are being stopped
    bool has_news = false;                  // a target has ended
    Instant hurry_from = Instant::never();  // another scope of the worker is due
    Instant held_up_at;                     // the last scan that found one
    Instant next_step_at;                   // when step() must be called at the latest
    Instant gathering_until;                // the evidence of incident and job
    EvidenceOrder evidence;                 // null: nothing is being collected
    std::optional<Evidence> last_evidence;  // of a worker that survived SIGKILL
    KillState::Means means;                 // set with the first signal
    std::optional<Instant> worker_died;

    [[nodiscard]] const Process& worker() const { return *order.worker.process; }
  };

  static bool has_started_another_program(const Kill& kill);
  void start_kill(const DeadlineScan::DueWorker& due, const ClockReading& now);
  void look_for_ancestors(Instant now);
  void note_message(const KillState& order, Instant now);

  // Records all new verdicts. Returns whether there are any.
  bool record_verdicts(Instant now);
  // Takes the bytes of the records from `room`, which is that for lists of open scopes.
  std::vector<std::string> records_of_verdict(const KillState& order, std::size_t& room);
  void note_synced();
  void find_releases(Kill& kill);

  void start_evidence(Kill& kill, Instant now);
  void start_evidence_of_others(const KillState& order, Instant now);
  static void limit_evidence(Kill& kill, Instant until);
  bool is_ready_for_signal(Kill& kill, Instant now);
  void start_last_evidence(Kill& kill, Instant now);

  Instant take_steps(Instant now, Instant woke);
  // Each step returns true if it has moved the kill on.
  bool step(Kill& kill, Instant now, Instant woke);
  bool begin_first_signal(Kill& kill, Instant now);
  void note_death(Kill& kill);
  bool wait_for_death(Kill& kill, Instant now);
  bool finish_unkillable(Kill& kill);

  void confirm_first_signal(Kill& kill);
  void note_means(Kill& kill, const KillState::Means& means);
  void begin_signal(Kill& kill);
  void stop_all_targets(const std::vector<Kill*>& kills);
  bool signal_stopped();
  void wait_after_signal(Kill& kill);
  [[nodiscard]] Instant end_of_wait(const Kill& kill) const;

  void end_without_signal(Kill& kill);
  void end_with_current_outcome(Kill& kill);
  void end(Kill& kill, KillVerdict verdict, std::string_view reason);
  // Returns the number of the last record.
  std::uint64_t record_outcome(const KillState& order, Records::Outcome outcome);
  // Does what follows the records: `number` is that of the last one.
  void finish(const KillState& order, const Records::Outcome& outcome, std::uint64_t number);

  Core& core_;
  const KillPolicy& policy_ = core_.settings.kill;
  Warnings& warnings_;
  Commands& commands_;
  Incidents incidents_;
  std::vector<pid_t> excluded_;  // the server and its ancestors
  Instant ancestors_seen_;       // when they were looked for last
  std::vector<std::unique_ptr<Kill>> kills_;
  std::unordered_map<const Process*, Kill*> kill_of_;  // by worker, not ended
  Duration stop_budget_{};        // what is left of kStopLimit in this advance()
  bool has_short_waits_ = false;  // see shorten_waits()
  std::vector<std::shared_ptr<const Process>> unkillable_;
  std::vector<std::string> messages_;  // of verdicts, printed after the signals
};

}  // namespace filetimer
