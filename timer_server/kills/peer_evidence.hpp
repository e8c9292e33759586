// The peers of a worker, the other workers of its job on this host, and their evidence when the
// worker has expired.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Returns nothing for a worker that belongs to no job, as far as is known.
std::optional<std::string> job_of(const std::optional<WorkerFacts>& facts);
// Returns the peers by rank, without those that are dying.
std::vector<const Worker*> peers_of(Core& core, const WorkerIdentity& worker);

// Collects the evidence of the peers once for each incident and job, and records it: it shows where
// they wait. The signals of the job's kills wait for the evidence, because the peers of a killed
// worker often exit. A peer may get the signal of its Python dump, as in a `dump` request.
//
//   peers.start(worker, incident, now);  // after the record of the verdict
//   ...
//   if (!peers.is_running_for(worker)) { /* the signals may be sent */ }
class PeerEvidence {
 public:
  // The most peers of a worker whose evidence is collected. The others are counted.
  static constexpr std::size_t kMaxPeers = 64;

  explicit PeerEvidence(Core& core) : core_(core) {}

  // Starts the collection for the job of the worker, which has expired in the last incident; unless
  // it was started for an earlier expiry. Leaves out peers that have expired themselves. Records
  // first what was collected for an earlier incident of the job. A dry run leaves the peers alone.
  void start(const WorkerIdentity& worker, const std::string& incident, Instant now);
  // Leaves out a peer that has expired itself, if its collection has not begun.
  void withdraw(const Process& worker);
  [[nodiscard]] bool is_running_for(const WorkerIdentity& worker) const;
  // Ends the collections and records what they have.
  void stop() { end_those_of(nullptr); }

 private:
  struct Peer {
    WorkerIdentity worker;
    std::string job;
    std::string incident;
    std::shared_ptr<std::size_t> omitted;  // further peers, written in the first record
    EvidenceOrder order;
  };
  void end_those_of(const std::string* job);
  void record(std::list<Peer>::iterator peer, const Evidence& evidence);

  Core& core_;
  std::list<Peer> peers_;       // whose evidence is being collected
  std::string incident_;        // the last one
  std::set<std::string> jobs_;  // its jobs for which the collection was started
};

}  // namespace filetimer
