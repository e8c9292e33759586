// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

#include <algorithm>
#include <climits>
#include <tuple>
#include <utility>

namespace filetimer {

std::optional<std::string> job_of(const std::optional<WorkerFacts>& facts) {
  return facts && has_job(*facts) ? std::optional(facts->job_id) : std::nullopt;
}

std::vector<const Worker*> peers_of(Core& core, const WorkerIdentity& worker) {
  std::vector<const Worker*> peers;
  const std::optional<std::string> job = job_of(*worker.facts);
  core.workers.for_each([&](const Worker& other) {
    if (job && other.process != worker.process && !other.is_dying() &&
        job == job_of(*other.facts)) {
      peers.push_back(&other);
    }
  });
  std::ranges::sort(peers, {}, [](const Worker* peer) {
    return std::tuple((*peer->facts)->rank.value_or(INT_MAX), peer->process->pid);
  });
  return peers;
}

void PeerEvidence::start(const WorkerIdentity& worker, const std::string& incident, Instant now) {
  const KillPolicy& policy = core_.settings.kill;
  const std::optional<std::string> job = job_of(*worker.facts);
  if (policy.evidence == EvidenceLevel::kNone || policy.dry_run || !job) {
    return;
  }
  if (incident != incident_) {
    incident_ = incident;
    jobs_.clear();
  }
  if (!jobs_.insert(*job).second) {
    return;
  }
  end_those_of(&*job);
  std::vector<const Worker*> peers = peers_of(core_, worker);
  std::erase_if(peers, [](const Worker* peer) { return peer->has_kill(); });
  const std::size_t count = std::min(peers.size(), kMaxPeers);
  const auto omitted = std::make_shared<std::size_t>(peers.size() - count);
  peers.resize(count);
  for (const Worker* const each : peers) {
    const auto peer = peers_.insert(
        peers_.end(), Peer{WorkerIdentity::of(*each), *job, incident, omitted, nullptr});
    peer->order = core_.desk.collect(
        {.worker = each->process,
         .level = policy.evidence,
         .use = EvidenceFor::kPeers,
         .until = now + policy.evidence_timeout,
         .python = core_.python_dump_of(*each)},
        now, [this, peer](const Evidence& evidence, bool) { record(peer, evidence); });
  }
}

void PeerEvidence::record(std::list<Peer>::iterator peer, const Evidence& evidence) {
  std::list<Peer> done;  // it waits no more, also if its record cannot be made
  done.splice(done.end(), peers_, peer);
  core_.log->append_detail(core_.records.peer_evidence(peer->worker, peer->incident, evidence,
                                                       std::exchange(*peer->omitted, 0)));
}

void PeerEvidence::withdraw(const Process& worker) {
  peers_.remove_if([&](const Peer& peer) {
    return peer.worker.process.get() == &worker && !(peer.order && peer.order->has_begun());
  });
}

bool PeerEvidence::is_running_for(const WorkerIdentity& worker) const {
  const std::optional<std::string> job = job_of(*worker.facts);
  return job && std::ranges::find(peers_, *job, &Peer::job) != peers_.end();
}

// Without a job: all of them.
void PeerEvidence::end_those_of(const std::string* job) {
  for (auto next = peers_.begin(); next != peers_.end();) {
    const auto peer = next++;
    const EvidenceOrder order = peer->order;
    if (job != nullptr && peer->job != *job) {
      continue;
    }
    if (order) {
      order->end();  // record() takes it out
    } else {
      peers_.erase(peer);  // it could not be ordered
    }
  }
}

}  // namespace filetimer
