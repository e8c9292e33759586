// The evidence of the peers of a worker that has expired: the other workers of its job on this
// host.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Collects the evidence of the peers once for each incident and job, and records it: it shows where
// they wait. The signals of the job's kills wait for the evidence, because the peers of a killed
// worker often exit. A peer may get the signal of its Python dump, as in a `dump` request.
//
//   if (peers.is_first_of_job(incident, job)) {  // after the record of the verdict
//     peers.start(incident, job, std::move(members), omitted, now);
//   }
//   ...
//   if (!peers.is_running_for(job)) { /* the signals may be sent */ }
class PeerEvidence {
 public:
  // The most peers whose evidence is collected for an incident. The caller passes no more, and the
  // number of the others.
  static constexpr std::size_t kMaxPeers = 64;

  explicit PeerEvidence(Core& core) : core_(core) {}

  // Returns whether the evidence of peers is collected at all. A dry run leaves them alone.
  [[nodiscard]] bool is_wanted() const {
    const KillPolicy& policy = core_.settings.kill;
    return policy.evidence != EvidenceLevel::kNone && !policy.dry_run;
  }
  // Returns whether nothing was started for this job in this incident, which is the last one.
  [[nodiscard]] bool is_first_of_job(const std::string& incident, const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() || found->second.incident != incident;
  }
  struct Peer {
    WorkerIdentity worker;
    std::optional<PythonDump> python{};
    EvidenceOrder order{};
  };
  // Starts the collection for a job of an incident. Records first what was collected for an earlier
  // incident of the job. `omitted`: the number of further peers.
  void start(const std::string& incident, const std::string& job, std::vector<Peer> peers,
             std::size_t omitted, Instant now);
  // Leaves out a peer that has expired itself, if its collection has not begun.
  void withdraw(const Process& worker);
  [[nodiscard]] bool is_running_for(const std::string& job) const;
  // Ends the collections and records what they have.
  void stop();

 private:
  struct Job {
    std::string incident;     // the last one for which a collection was started
    std::size_t omitted = 0;  // written in the first record
    std::list<Peer> waiting;
  };

  static void record_all(Job& job);

  Core& core_;
  std::map<std::string, Job> jobs_;  // those of the last incident, and those with a collection
};

}  // namespace filetimer
