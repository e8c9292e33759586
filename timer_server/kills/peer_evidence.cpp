// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

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
    stop();
    omitted_ = 0;
    incident_ = incident;
    jobs_.clear();
  }
  jobs_.insert(job);
  if (peers.empty()) {
    return;
  }
  omitted_ += omitted;
  is_recorded_.resize(is_recorded_.size() + peers.size());
  const Instant until = now + timeout_;
  if (group_) {
    group_->add(std::move(peers), until);
  } else {
    group_.emplace(side_threads_, slots_,
                   GroupCollection::Options{.level = level_, .timeout = timeout_, .until = until},
                   std::move(peers));
  }
}

void PeerEvidence::withdraw(const Process& worker) {
  loop_thread_.check();
  if (group_) {
    group_->withdraw(worker);
  }
}

Instant PeerEvidence::advance(Instant now) {
  loop_thread_.check();
  if (!group_) {
    return Instant::never();
  }
  const Instant next = group_->advance(now);
  record_new();
  if (group_->is_done()) {
    group_.reset();
    is_recorded_.clear();
  }
  return next;
}

void PeerEvidence::stop() {
  loop_thread_.check();
  if (group_) {
    group_->stop();
    record_new();
    group_.reset();
    is_recorded_.clear();
  }
}

void PeerEvidence::record_new() {
  for (std::size_t i = 0; i < is_recorded_.size(); ++i) {
    const GroupCollection::Member& member = *group_->members()[i];
    if (!member.is_done() || is_recorded_[i]) {
      continue;
    }
    is_recorded_[i] = true;
    Evidence none;
    none.missing = "there was no time for this worker";
    if (!member.is_withdrawn()) {
      const Evidence* const evidence = member.evidence();
      log_.append(records_.peer_evidence(member.worker(), incident_,
                                         evidence != nullptr ? *evidence : none,
                                         std::exchange(omitted_, 0)));
    }
  }
}

}  // namespace filetimer
