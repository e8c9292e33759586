// The evidence of the peers of a worker that has expired: the other workers of its job on this
// host.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"
#include "timer_server/evidence/group_collection.hpp"

namespace filetimer {

// Collects the evidence of the peers once for each incident and job, and records it: it shows where
// they wait. The signals of the job's kills wait for the evidence, because the peers of a killed
// worker often exit. A peer may get the signal of its Python dump, as in a `dump` request.
//
//   if (peers.is_first_of_job(incident, job)) {  // after the record of the verdict
//     peers.start(incident, job, std::move(members), omitted, now);
//   }
//   ...
//   next = peers.advance(now);
//   if (!peers.is_running_for(job)) { /* the signals may be sent */ }
class PeerEvidence {
 public:
  // The most peers whose evidence is collected for an incident. The caller passes no more, and the
  // number of the others.
  static constexpr std::size_t kMaxPeers = 64;

  explicit PeerEvidence(Core& core) : core_(core) {}

  // Returns whether the evidence of peers is collected at all.
  [[nodiscard]] bool is_wanted() const { return level_ != EvidenceLevel::kNone; }
  // Returns whether nothing was started for this job in this incident, which is the last one.
  [[nodiscard]] bool is_first_of_job(const std::string& incident, const std::string& job) const {
    return incident != incident_ || !jobs_.contains(job);
  }
  // Starts the collection for a job of an incident. Records first what was collected for an earlier
  // incident of the job. `omitted`: the number of further peers.
  void start(const std::string& incident, const std::string& job,
             std::vector<GroupCollection::Member> peers, std::size_t omitted, Instant now);
  // Leaves out a peer that has expired itself, if its collection has not begun.
  void withdraw(const Process& worker);
  // Records the evidence that is complete. Returns when it must be called again at the latest, or
  // never(); it must also be called when the side threads have delivered.
  Instant advance(Instant now);
  [[nodiscard]] bool is_running() const { return !running_.empty(); }
  [[nodiscard]] bool is_running_for(const std::string& job) const;
  // Ends the collections and records what they have.
  void stop();

 private:
  struct Collection {
    std::string incident;
    std::string job;
    std::size_t omitted = 0;  // written in the first record
    GroupCollection group;
  };

  void record_done(Collection& collection);
  void stop(Collection& collection);

  Core& core_;
  const EvidenceLevel level_ = core_.settings.kill.evidence_of_peers();
  const CollectionSlots slots_{};
  std::string incident_;
  std::set<std::string> jobs_;  // of the incident, for which a collection was started
  std::list<Collection> running_;
};

}  // namespace filetimer
