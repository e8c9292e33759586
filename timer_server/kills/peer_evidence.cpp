// SPDX-License-Identifier: MIT
#include "timer_server/kills/peer_evidence.hpp"

#include <algorithm>
#include <utility>

namespace filetimer {

void PeerEvidence::start(const std::string& incident, const std::string& job,
                         std::vector<Peer> peers, std::size_t omitted, Instant now) {
  std::erase_if(jobs_, [&](const auto& each) {
    return each.second.incident != incident && each.second.waiting.empty();
  });
  Job& of_job = jobs_[job];
  record_all(of_job);
  of_job.incident = incident;
  of_job.omitted = omitted;
  for (Peer& each : peers) {
    Peer& peer = of_job.waiting.emplace_back(std::move(each));
    peer.order = core_.desk.collect(
        {.worker = peer.worker.process,
         .level = core_.settings.kill.evidence,
         .use = EvidenceFor::kPeers,
         .until = now + core_.settings.kill.evidence_timeout,
         .python = std::move(peer.python)},
        now, [this, &of_job, &peer](const Evidence& evidence, bool) {
          std::list<Peer> done;  // it waits no more, also if its record cannot be made
          done.splice(done.end(), of_job.waiting,
                      std::ranges::find(of_job.waiting, &peer, [](Peer& other) { return &other; }));
          core_.log->append_detail(core_.records.peer_evidence(
              peer.worker, of_job.incident, evidence, std::exchange(of_job.omitted, 0)));
        });
  }
}

void PeerEvidence::withdraw(const Process& worker) {
  for (auto& each : jobs_) {
    each.second.waiting.remove_if([&](const Peer& peer) {
      return peer.worker.process.get() == &worker && !(peer.order && peer.order->has_begun());
    });
  }
}

bool PeerEvidence::is_running_for(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && !found->second.waiting.empty();
}

void PeerEvidence::stop() {
  for (auto& each : jobs_) {
    record_all(each.second);
  }
}

void PeerEvidence::record_all(Job& job) {
  while (!job.waiting.empty()) {
    if (const EvidenceOrder order = job.waiting.front().order) {
      order->end();
    } else {
      job.waiting.pop_front();  // it could not be ordered
    }
  }
}

}  // namespace filetimer
