// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

#include <algorithm>
#include <utility>

namespace filetimer {

PeerEvidence::PeerEvidence(const KillPolicy& policy, Records& records, RecordLog& log,
                           SideThreads& side_threads)
    : level_(policy.evidence_of_peers()),
      timeout_(policy.evidence_timeout),
      records_(records),
      log_(log),
      side_threads_(side_threads) {}

void PeerEvidence::start(const std::string& incident, const std::string& job,
                         std::vector<GroupCollection::Member> peers, std::size_t omitted,
                         Instant now) {
  loop_thread_.check();
  if (incident != incident_) {
    incident_ = incident;
    jobs_.clear();
  }
  jobs_.insert(job);
  if (peers.empty()) {
    return;
  }
  std::erase_if(running_, [&](Collection& earlier) {
    const bool is_of_job = earlier.job == job;
    if (is_of_job) {
      stop(earlier);
    }
    return is_of_job;
  });
  running_.push_back(
      {incident, job, omitted,
       GroupCollection(side_threads_, slots_,
                       {.level = level_, .timeout = timeout_, .until = now + timeout_},
                       std::move(peers))});
}

void PeerEvidence::withdraw(const Process& worker) {
  loop_thread_.check();
  for (Collection& collection : running_) {
    collection.group.withdraw(worker);
  }
}

bool PeerEvidence::is_running_for(const std::string& job) const {
  return std::ranges::any_of(running_,
                             [&](const Collection& collection) { return collection.job == job; });
}

Instant PeerEvidence::advance(Instant now) {
  loop_thread_.check();
  Instant next = Instant::never();
  std::erase_if(running_, [&](Collection& collection) {
    next = std::min(next, collection.group.advance(now));
    record_done(collection);
    return collection.group.is_done();
  });
  return next;
}

void PeerEvidence::stop() {
  loop_thread_.check();
  for (Collection& collection : running_) {
    stop(collection);
  }
  running_.clear();
}

void PeerEvidence::stop(Collection& collection) {
  collection.group.stop();
  record_done(collection);
}

void PeerEvidence::record_done(Collection& collection) {
  Evidence none;
  none.missing = "there was no time for this worker";
  for (const auto& member : collection.group.take_done()) {
    const Evidence* const evidence = member->evidence();
    log_.append_detail(records_.peer_evidence(member->worker(), collection.incident,
                                              evidence != nullptr ? *evidence : none,
                                              std::exchange(collection.omitted, 0)));
  }
}

}  // namespace filetimer
