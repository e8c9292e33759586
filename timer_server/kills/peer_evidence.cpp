// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

#include <algorithm>
#include <utility>

namespace filetimer {

void PeerEvidence::start(const std::string& incident, const std::string& job,
                         std::vector<GroupCollection::Member> peers, std::size_t omitted,
                         Instant now) {
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
  const Duration timeout = core_.settings.kill.evidence_timeout;
  running_.push_back({incident, job, omitted,
                      GroupCollection(core_.side_threads, slots_,
                                      {.level = level_, .timeout = timeout, .until = now + timeout},
                                      std::move(peers))});
}

void PeerEvidence::withdraw(const Process& worker) {
  for (Collection& collection : running_) {
    collection.group.withdraw(worker);
  }
}

bool PeerEvidence::is_running_for(const std::string& job) const {
  return std::ranges::any_of(running_,
                             [&](const Collection& collection) { return collection.job == job; });
}

Instant PeerEvidence::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(running_, [&](Collection& collection) {
    next = std::min(next, collection.group.advance(now));
    record_done(collection);
    return collection.group.is_done();
  });
  return next;
}

void PeerEvidence::stop() {
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
    core_.log->append_detail(core_.records.peer_evidence(member->worker(), collection.incident,
                                                         evidence != nullptr ? *evidence : none,
                                                         std::exchange(collection.omitted, 0)));
  }
}

}  // namespace filetimer
