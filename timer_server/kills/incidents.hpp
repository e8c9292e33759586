// Incidents: what all workers did when scopes expired, and the evidence of the peers of a worker
// that has expired: the other workers of its job on this host.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// The most open scopes that an `incident` lists, in equal shares of all workers: most are read
// between a deadline and its signal, and a thousand take a millisecond. Where the share is smaller,
// a worker lists kFewOfEachWorker, which say where it is, or as many as fit
// kMaxIncidentScopesOfFew, and at least one. Further scopes are counted.
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

// Returns the job of a worker. Workers with a rank and no job id count as one job. Returns nothing
// for a process with neither, such as a COMMAND of `timer_client run`, and while they are not
// known.
std::optional<std::string> job_of(const WorkerFacts& facts);
// Returns the peers by rank, without those that are dying.
std::vector<const Worker*> peers_of(Core& core, const WorkerIdentity& worker);

// Expiries within kWindow are one incident: the other workers waited for the same thing. Makes its
// record. The scopes of all workers are read between verdicts and signals, within kReadLimit. The
// record takes milliseconds: it is appended behind the signals of the same moment, and the workers
// that were not read in time are read then. It waits for the ranks of the workers, but not longer
// than the first signal or outcome. Kills::advance() shows the order of the calls.
//
// The evidence of the peers is collected once for each incident and job, and recorded: it shows
// where they wait. The signals of the job's kills wait for the evidence, because the peers of a
// killed worker often exit. A peer may get the signal of its Python dump, as in a `dump` request.
class Incidents {
 public:
  static constexpr Duration kWindow = std::chrono::seconds{2};
  // How long the kills of an incident wait until the scopes of all workers are read. One worker
  // takes about 4 us, so the scopes of a hundred are those of the moment of the verdict.
  static constexpr Duration kReadLimit = std::chrono::microseconds{500};

  // The most peers of a worker whose evidence is collected. The others are counted.
  static constexpr std::size_t kMaxPeers = 64;

  explicit Incidents(Core& core) : core_(core) {}

  // Adds an expiry that was judged at `now` to the last incident, or begins one. Returns its id.
  const std::string& add(const std::string& expiry, const ClockReading& now);
  // Returns whether this is the id of the last incident.
  [[nodiscard]] bool is_last(const std::string& id) const { return last_ && last_->id == id; }
  // Reads the workers of a new incident, those with a kill in any case: the signal ends their
  // scopes on the pipe. `has_verdicts`: verdicts were recorded since the last call.
  void read_workers(bool has_verdicts);
  // Takes note that a signal was sent, or that a kill has ended: the record waits no longer.
  void want_record() { is_wanted_ = true; }
  // Records the incident if it is due. Returns when it must be called again, or never().
  Instant advance(Instant now);
  // Records the incident, unless it is recorded, or there is no memory for that: nothing waits for
  // it.
  void finish();

  // Starts the collection for the job of the worker, which has expired in the last incident and
  // whose verdict is recorded; unless it was started for an earlier expiry. Leaves out peers that
  // have expired themselves. A dry run leaves the peers alone.
  void start_peers(const WorkerIdentity& worker, Instant now);
  // Leaves out a peer that has expired itself, if its collection has not begun.
  void withdraw_peer(const Process& worker);
  [[nodiscard]] bool is_gathering_for(const WorkerIdentity& worker) const;
  // Ends the collections and records what they have.
  void end_peers();

 private:
  struct Peer {
    WorkerIdentity worker;
    std::string incident;
    std::shared_ptr<std::size_t> omitted;  // further peers, written in the first record
    EvidenceOrder order;
  };
  enum class Stage { kJudged, kRead, kRecorded };
  void read_worker(const Worker& worker);
  void record();

  Core& core_;
  std::optional<Incident> last_;
  Stage stage_ = Stage::kRecorded;
  bool has_verdicts_ = false;                           // its first verdicts are recorded
  bool is_wanted_ = false;                              // see want_record()
  std::vector<std::shared_ptr<const Process>> unread_;  // workers that are read for the record
  std::set<std::string> jobs_;  // of the last incident, whose peers' evidence was started
  std::list<Peer> peers_;       // whose evidence is being collected
};

}  // namespace filetimer
