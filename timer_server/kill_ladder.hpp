// What happens between a verdict and its end: record synced, evidence, signal with SIGCONT to the
// worker and its companions, grace, SIGKILL, death confirmed, outcome recorded. Every step has a
// bound; nothing here waits: advance() takes each kill as far as it can go now.
// Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/gathering.hpp"
#include "timer_server/process_tree.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/side_threads.hpp"

namespace filetimer {

struct KillPolicy {
  KillMode mode = KillMode::kTree;
  EvidenceLevel evidence = EvidenceLevel::kProc;
  bool dry_run = false;
  Duration evidence_timeout = std::chrono::seconds{2};
  Duration kill_wait = std::chrono::seconds{30};
};

// Expiries close together share one: where everybody was when the first of them was judged.
struct Incident {
  std::string id;
  std::vector<Expiry> expiries;
  std::vector<WorkerScopes> workers;
  std::size_t omitted = 0;  // open scopes that are not listed
  ClockReading when;
  bool recorded = false;
};

// One worker to be killed, or spared, for the scopes in `expiries`.
struct KillOrder {
  WorkerIdentity worker;
  std::shared_ptr<Incident> incident;
  std::vector<Expiry> expiries;        // the earliest deadline first
  std::vector<ScopeView> open_scopes;  // of this worker, the expired ones included
  bool is_recorded = false;            // by a server before this one, which did not finish it
  bool has_evidence = false;           // likewise
  std::string record;                  // `expired` of the first expiry, as it stands in the log
  std::optional<PythonDump> python;    // the worker's offer

  // The expiry whose signal is sent: the earliest that has one and was not released since, one that
  // may still be left only where no other is; null: the worker is spared.
  [[nodiscard]] const Expiry* deciding() const;
};

struct KillEnd {
  KillVerdict verdict = KillVerdict::kDead;
  std::string record;               // `killed` of the first expiry
  std::uint64_t record_number = 0;  // of the last one's, in the log
};

// Whether a thread of the process runs, or waits in the kernel where a signal does not reach it: it
// may be in the middle of a fork() then.
bool may_be_forking(pid_t pid);
using MayBeForking = std::function<bool(pid_t)>;

class KillLadder {
 public:
  // Bounds of the steps before the signal. Ours are in milliseconds; evidence has its own option.
  static constexpr Duration kFactsLimit = std::chrono::milliseconds{100};
  static constexpr Duration kSyncLimit = RecordLog::kStalled;
  // A release on a page wakes nobody: how often a scope that may still be left is looked at.
  static constexpr Duration kLeaveLook = std::chrono::milliseconds{50};
  // How long a kill waits for the processes that it holds to have stopped: microseconds, where the
  // processor is not busy. And all kills of one turn together.
  static constexpr Duration kHoldLimit = std::chrono::milliseconds{30};
  static constexpr Duration kHoldBudget = std::chrono::milliseconds{50};

  // What the ladder tells its owner.
  struct Listener {
    // Whether a scope was released since its verdict, by a way that does not go through
    // note_release().
    std::function<bool(const Process&, const Expiry&)> was_released;
    // The first signal is about to be sent. `is_final`: SIGKILL is, or will follow. Gives the names
    // of the worker's other scopes, which are cancelled by it.
    std::function<std::vector<std::string>(const Process&, bool is_final)> on_signal;
    // Once for every order.
    std::function<void(const KillOrder&, const KillEnd&)> on_end;
  };
  KillLadder(KillPolicy policy, Records& records, RecordLog& log, SideThreads& side_threads,
             Listener listener, MayBeForking may_be_forking = filetimer::may_be_forking);
  ~KillLadder();

  void start(KillOrder order, Instant now);
  // Gives the time at which to call again at the latest. Also to be called when the log or the
  // side threads have news, and when death_fd() is readable.
  Instant advance(Instant now);
  [[nodiscard]] int death_fd() const { return deaths_.get(); }

  // A release (or a renewal) came for a scope that was judged already. True when that was before
  // the signal, or in the grace of a scope that may be left then: it is recorded, and nobody is
  // killed for this scope.
  bool note_release(const Process& worker, std::string_view scope_id, Instant now);

  // Whether the worker was judged and its kill has not ended.
  [[nodiscard]] bool has_kill_of(const Process& worker) const;
  [[nodiscard]] bool idle() const { return kills_.empty(); }
  [[nodiscard]] std::size_t count() const { return kills_.size(); }
  // The server, or the whole machine, was not there for `missed`: who is in its grace has it yet.
  void give_time(Duration missed);
  // From now on no worker is given grace: SIGKILL follows the first signal at once, also in kills
  // that begin later.
  void hurry(Instant now);
  // The server stops: what is still under way ends here, recorded as it stands.
  void give_up();

 private:
  struct Kill;

  // Each returns true when it has moved the kill on.
  bool step(const std::shared_ptr<Kill>& kill, Instant now);
  bool record_verdict(const std::shared_ptr<Kill>& kill, Instant now);
  void look_for_releases(Kill& kill, Instant now);
  void note_late(Kill& kill, Expiry& expiry, Instant now);
  bool send_first_signal(Kill& kill, Instant now);
  bool wait_for_death(const std::shared_ptr<Kill>& held, Instant now);
  bool look_a_last_time(Kill& kill, Instant now);
  void gather(const std::shared_ptr<Kill>& kill);
  void end_gathering(Kill& kill);
  void send(Kill& kill, int signal);
  void hold_all(Kill& kill);
  void wait_until_stopped(pid_t pid, Instant until) const;
  void look_again(Kill& kill) const;
  [[nodiscard]] Kill* other_kill_of(const Kill& kill) const;
  void note_deaths();
  void watch(const Kill& kill, const Process& process) const;
  void end_as_it_stands(Kill& kill, const std::vector<pid_t>& alive);
  void end(Kill& kill, KillVerdict verdict, std::string_view reason);

  const KillPolicy policy_;
  Records& records_;
  RecordLog& log_;
  SideThreads& side_threads_;
  const Listener listener_;
  const MayBeForking may_be_forking_;
  const std::vector<pid_t> spared_;  // this process and all above it
  UniqueFd deaths_;                  // an epoll of the pidfds that we wait for
  std::vector<std::shared_ptr<Kill>> kills_;
  std::uint64_t last_number_ = 0;
  bool is_hurried_ = false;
  Duration hold_budget_{};  // what is left of kHoldBudget in this advance()
  bool one_ended_ = false;  // in this pass of advance(): others may have waited for it
};

}  // namespace filetimer
