// Verdicts: what follows when scopes of a worker have expired.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "timer_server/core.hpp"
#include "timer_server/kills/commands.hpp"
#include "timer_server/kills/kill_ladder.hpp"
#include "timer_server/kills/peer_evidence.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

// How many open scopes of each worker an `incident` lists: most are read between a deadline and its
// signal. What is beyond is counted. Of all workers together, each with the same share. Of each
// worker the record has the few that say where it is all the same, where it has room for as many: a
// thousand scopes more cost a millisecond.
inline constexpr std::size_t kMaxIncidentScopes = 1024;
inline constexpr std::size_t kFewOfEachWorker = 4;
inline constexpr std::size_t kMaxIncidentScopesOfFew = 4096;

constexpr std::size_t incident_share(std::size_t workers) {
  const std::size_t count = std::max<std::size_t>(workers, 1);
  const std::size_t few =
      std::clamp(kMaxIncidentScopesOfFew / count, std::size_t{1}, kFewOfEachWorker);
  return std::max(kMaxIncidentScopes / count, few);
}

// How many ended scopes an `incident` lists, each worker with the same share, and how long before
// it they may have ended.
inline constexpr std::size_t kMaxIncidentEndedScopes = 8192;
inline constexpr Duration kIncidentPast = std::chrono::minutes{10};

// Shortens `ended` to the scopes that a worker of `workers` has in an incident at `when`: of those
// that ended within kIncidentPast before it, or since, the latest. Returns how many others of them
// there are.
std::size_t shorten_ended_scopes(EndedScopesByName& ended, Instant when, std::size_t workers);

// Turns the scopes on which a scan has given the verdict into kill orders, one for each worker, and
// tells the kill ladder of late releases. Expiries within kIncidentWindow are one incident: the
// other workers waited for the same thing.
class Verdicts {
 public:
  static constexpr Duration kIncidentWindow = std::chrono::seconds{2};
  // How long the kills of an incident wait until the scopes of all workers are read. One worker
  // takes about 4 us, so the scopes of a hundred are those of the moment of the verdict.
  static constexpr Duration kReadLimit = std::chrono::microseconds{500};

  Verdicts(Core& core, KillFiles& files, Warnings& warnings, Commands& commands,
           PeerEvidence& peers);

  // Starts a kill of each worker in `due`, which has the earliest deadline first. `now` is when the
  // scopes were judged.
  void carry_out(const std::vector<DeadlineScan::DueScope>& due, const ClockReading& now);
  // The most workers whose CPU times are read at once before their deadlines.
  static constexpr std::size_t kMostSampled = 64;
  // Reads the CPU times of workers with a deadline within CpuSample::kLead, for their evidence.
  void sample(std::span<Worker* const> workers, Instant now);
  // Starts a kill of `worker` that an earlier server has recorded and not finished.
  void resume(Worker& worker, KillOrder order, Instant now);
  // Ends a kill of an earlier server whose worker is not watched.
  void end(const KillOrder& order, const Records::Outcome& outcome);
  // Starts the hook for a kill that has ended.
  void start_hook(const KillOrder& order, const KillEnd& end);

  // Records the verdicts and advances the ladder: see KillLadder::advance(). Between the two the
  // scopes of all workers are read for the record of an incident, within kReadLimit. That record
  // takes milliseconds: it is appended behind the signals of the same moment, and the workers that
  // were not read in time are read then. It waits for the ranks of the workers, but not longer than
  // the first signal or outcome.
  Instant advance(Instant now);
  // Ends all kills with the outcome that they have now: see KillLadder::abandon().
  void abandon();

  // Returns the ladder.
  [[nodiscard]] KillLadder& ladder() { return ladder_; }
  [[nodiscard]] const KillLadder& ladder() const { return ladder_; }

  // Returns whether a kill has ended since the last call whose worker has scopes to be judged.
  bool take_changed_scopes() { return std::exchange(has_changed_scopes_, false); }
  // Returns the number of workers that are alive after SIGKILL.
  [[nodiscard]] std::size_t unkillable() const;

 private:
  using DueOfWorker = std::vector<const DeadlineScan::DueScope*>;
  void start_kill(Worker& worker, const DueOfWorker& due, const ClockReading& now);
  Incident& incident_at(const ClockReading& now);
  Instant advance_incident(Instant now);
  [[nodiscard]] bool is_incident_due(Instant now) const;
  void read_workers();
  void read_worker(const Worker& worker);
  void read_ended_scopes();
  void record_incident();
  std::optional<Expiry> expiry_of(const DeadlineScan::DueScope& due) const;
  void note_message(const KillOrder& order, Instant now);

  void start_evidence_of_peers(const WorkerIdentity& worker, const std::string& incident,
                               Instant now);

  // What the ladder calls.
  [[nodiscard]] std::optional<Instant> released_at(const Process& process,
                                                   const Expiry& expiry) const;
  [[nodiscard]] bool has_worked_since(const Process& process, Instant since) const;
  std::vector<std::string> on_signal(const Process& process, bool is_final);
  void on_recorded(const KillOrder& order, Instant now);
  [[nodiscard]] bool is_gathering(const KillOrder& order) const;
  void on_end(const KillOrder& order, const KillEnd& end);
  // Returns the other workers of its job by rank, without those to which a last signal was sent
  // (Worker::dying).
  [[nodiscard]] std::vector<const Worker*> peers_of(const WorkerIdentity& worker) const;

  Core& core_;
  KillFiles& files_;
  Warnings& warnings_;
  Commands& commands_;
  PeerEvidence& peers_;
  std::optional<Incident> incident_;  // the last one
  enum class IncidentStage { kJudged, kRead, kRecorded };
  IncidentStage incident_stage_ = IncidentStage::kRecorded;
  bool is_first_recorded_ = false;    // the incident's first verdicts are recorded
  std::uint64_t signals_before_ = 0;  // that the ladder had sent when the incident began
  bool has_outcome_ = false;          // a kill has ended since
  // The pages of its workers, in the same order: some end before the record is made.
  std::vector<std::vector<std::shared_ptr<WorkerPage>>> incident_pages_;
  std::vector<std::shared_ptr<const Process>> unread_;  // workers that are read for the record
  std::vector<std::shared_ptr<const Process>> unkillable_;
  bool has_changed_scopes_ = false;
  std::vector<std::string> messages_;  // of verdicts, printed after the signals
  KillLadder ladder_;
};

}  // namespace filetimer
