// The kill ladder: what follows a verdict, from its record to the outcome.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"
#include "timer_server/kills/kill_files.hpp"
#include "timer_server/kills/kill_targets.hpp"

namespace filetimer {

// The verdicts of one worker that are carried out together.
struct KillOrder {
  WorkerIdentity worker;
  std::vector<Expiry> expiries;            // the earliest deadline first
  std::vector<ScopeView> open_scopes;      // of this worker, the expired ones included
  std::optional<PythonDump> python;        // what the worker's page says of its faulthandler
  std::shared_ptr<const CpuSample> early;  // from before the deadline; null: none
  std::uint64_t record_number = 0;         // of the verdicts; 0: not recorded yet, or synced
  std::vector<SentSignal> sent;            // the signals
  // Of a kill that an earlier server has begun:
  bool is_continued = false;
  bool has_evidence = false;

  // Returns the id of the kill.
  [[nodiscard]] const std::string& id() const { return expiries.front().id; }

  // Returns the first signal, and the time after which SIGKILL follows it, if SIGKILL does: the
  // signal of the earliest expiry that has one and whose scope was not released since, and the
  // shortest grace period of such expiries. Returns nothing if the worker is to be spared.
  struct Means {
    int signal = 0;
    std::optional<Grace> grace;
    [[nodiscard]] bool ends_in_sigkill() const { return signal == SIGKILL || grace; }
  };
  [[nodiscard]] std::optional<Means> means() const;
};

struct KillEnd {
  KillVerdict verdict = KillVerdict::kDead;
  std::uint64_t record_number =
      0;  // of the last `killed` record, as RecordLog::append() returned it
};

// Carries out kill orders. The steps of a kill are: keep the verdict in a kill file and record it;
// collect the evidence; send the first signal to the kill targets; wait for the grace period; send
// SIGKILL; wait for the deaths; record the outcome. Each step has a time limit, and none waits for
// the log.
//
// No member function waits, except for the kStopLimit before a signal: advance() takes every kill
// as far as it can go now. The ends of processes that were signalled wake the loop, and their
// handlers note that only.
class KillLadder {
 public:
  // How long the verdict waits for the worker's command line and rank.
  static constexpr Duration kFactsLimit = std::chrono::milliseconds{100};
  // How long the first signal waits for evidence at most when the server is stopping.
  static constexpr Duration kShortEvidenceLimit = std::chrono::milliseconds{500};
  // How long all kills of one advance() wait together until their targets have stopped, so that
  // many kills do not delay deadlines. On an idle machine that takes microseconds.
  static constexpr Duration kStopLimit = std::chrono::milliseconds{30};

  // Callbacks to the owner of the scopes.
  struct Listener {
    // Returns when a scope was released, or renewed, since its verdict.
    std::function<std::optional<Instant>(const Process&, const Expiry&)> released_at;
    // Is called before the first signal is sent. `is_final`: the signal is SIGKILL, or SIGKILL will
    // follow. Returns the names of the worker's other open scopes, which the kill cancels.
    std::function<std::vector<std::string>(const Process&, bool is_final)> on_signal;
    // Is called once for every order.
    std::function<void(const KillOrder&, const KillEnd&)> on_end;
    // Is called when the records of an order's verdicts are queued. By then the rank and the job of
    // the worker are known, or kFactsLimit has passed.
    std::function<void(const KillOrder&, Instant now)> on_recorded = [](const KillOrder&, Instant) {
    };
    // Returns whether the first signal must wait for evidence of the order's incident or job. It
    // waits for the time limit of evidence at most.
    std::function<bool(const KillOrder&)> is_gathering = [](const KillOrder&) { return false; };
  };
  KillLadder(Core& core, KillFiles& files, Listener listener);
  ~KillLadder();

  // Begins a kill. record_verdicts() or advance() takes its first step.
  void start(KillOrder order, Instant now);
  // Records the outcome of a kill that needs no step.
  void end(const KillOrder& order, Records::Outcome outcome);
  // Records all new verdicts. Returns whether there are any.
  bool record_verdicts(Instant now);
  // Takes all kills as far as they can go. Returns when it must be called again at the latest; it
  // must also be called when the log or the evidence desk has news, and when the loop has called a
  // handler.
  Instant advance(Instant now);
  // Takes note that a worker has ended. The ladder watches the other kill targets only: the owner
  // of the workers watches their pidfds, and a loop can watch a descriptor once.
  void note_worker_ended(const Process& worker);

  [[nodiscard]] bool idle() const { return kills_.empty(); }
  [[nodiscard]] std::size_t count() const { return kills_.size(); }
  // Returns the number of signals that were sent, to all targets of a kill together.
  [[nodiscard]] std::uint64_t signals() const { return signals_; }
  // Extends every grace period by the time that the server or the machine missed.
  void extend_grace(Duration missed);
  // Ends all grace periods, and shortens the waits for evidence to kShortEvidenceLimit: from now
  // on SIGKILL follows the first signal at once. The same holds for kills that begin later. Called
  // when the server begins to stop.
  void shorten_waits(Instant now);
  // Ends all kills with the outcome that they have now. One whose verdict is not recorded yet is
  // left to the next server. Called when the server stops.
  void abandon();

 private:
  struct Kill;

  // Each step returns true if it has moved the kill on.
  bool step(const std::shared_ptr<Kill>& kill, Instant now);
  bool begin_first_signal(const std::shared_ptr<Kill>& kept, Instant now);
  bool wait_for_death(const std::shared_ptr<Kill>& kept, Instant now);
  bool finish_unkillable(Kill& kill);

  // Takes the bytes of the records from `room`, which is that for lists of open scopes.
  std::vector<std::string> records_of_verdict(const KillOrder& order, std::size_t& room);
  void note_means(Kill& kill, const KillOrder::Means& means);
  void wait_after_signal(Kill& kill);
  void note_recorded();
  bool is_ready_for_signal(Kill& kill, Instant now);
  void end_without_signal(Kill& kill);
  void take_out(Kill& kill);
  void start_evidence(Kill& kill, Instant now);
  void start_last_evidence(Kill& kill, Instant now);
  void find_releases(Kill& kill);
  void begin_signal(const std::shared_ptr<Kill>& kept);
  bool signal_stopped();
  void send_due_signal(Kill& kill);
  void stop_all_targets();
  [[nodiscard]] Kill* other_kill_of_same_worker(const Kill& kill) const;
  void end_with_current_outcome(Kill& kill, const std::vector<pid_t>& alive);
  void end(Kill& kill, KillVerdict verdict, std::string_view reason);

  EventLoop& loop_;
  const KillPolicy& policy_;
  Records& records_;
  RecordLog& log_;
  KillFiles& files_;
  EvidenceDesk& desk_;
  CountsByScope& released_late_;
  const Listener listener_;
  const MayBeForking may_be_forking_ = may_be_forking;
  const std::vector<pid_t> excluded_;  // the server and its ancestors
  std::vector<std::shared_ptr<Kill>> kills_;
  // By worker, those that have not ended. A worker has several if a scope expired while the
  // evidence of another was collected.
  std::unordered_map<const Process*, std::vector<std::shared_ptr<Kill>>> kills_of_;
  bool has_short_waits_ = false;
  std::uint64_t signals_ = 0;
  std::vector<std::shared_ptr<Kill>> stopping_;  // in Stage::kStopping
  Duration stop_budget_{};                       // what is left of kStopLimit in this advance()
  bool has_freed_one_ = false;  // in this pass of advance() a kill ended for which another may wait
};

}  // namespace filetimer
