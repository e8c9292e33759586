// SPDX-License-Identifier: MIT
#include "timer_server/kills/incidents.hpp"

#include <sched.h>

#include <climits>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

#include "timer_server/system/messages.hpp"

namespace filetimer {

std::size_t shorten_ended_scopes(EndedScopesByName& ended, Instant when, std::size_t workers) {
  const Instant since{std::max<std::int64_t>(when.ns - Duration{kIncidentPast}.count(), 0)};
  std::vector<Instant> times;
  for (auto& [name, scopes] : ended) {
    std::erase_if(scopes, [&](const EndedReading& scope) { return scope.ended < since; });
    std::ranges::transform(scopes, std::back_inserter(times), &EndedReading::ended);
  }
  static_assert(kMaxIncidentEndedScopes >= kMaxWorkers);
  const std::size_t share = kMaxIncidentEndedScopes / std::max<std::size_t>(workers, 1);
  Instant first = since;
  if (times.size() > share) {
    const auto last_kept = times.begin() + static_cast<std::ptrdiff_t>(share) - 1;
    std::ranges::nth_element(times, last_kept, std::ranges::greater{});
    first = *last_kept;
  }
  std::size_t kept = 0;
  for (auto& [name, scopes] : ended) {
    std::erase_if(scopes, [&](const EndedReading& scope) { return scope.ended < first; });
    kept += scopes.size();
  }
  std::erase_if(ended, [](const auto& entry) { return entry.second.empty(); });
  return times.size() - kept;
}

std::optional<std::string> job_of(const WorkerFacts& facts) {
  const bool has_one = !facts.job_id.empty() || facts.rank;
  return has_one ? std::optional(facts.job_id) : std::nullopt;
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
    return std::tuple(peer->facts->rank.value_or(INT_MAX), peer->process->pid);
  });
  return peers;
}

const std::string& Incidents::add(const std::string& expiry, const ClockReading& now) {
  if (!last_ || now.mono - last_->when.mono > kWindow) {
    finish();
    last_.emplace();
    last_->id = core_.records.next_id(Records::Named::kIncident);
    last_->when = now;
    stage_ = Stage::kJudged;
    has_verdicts_ = false;
    is_wanted_ = false;
    jobs_.clear();
  }
  if (stage_ != Stage::kRecorded) {
    last_->expiries.push_back(expiry);
  }
  return last_->id;
}

Instant Incidents::advance(Instant now) {
  if (stage_ != Stage::kRead) {
    return Instant::never();
  }
  const Instant facts_until = last_->when.mono + kFactsLimit;
  const auto has_facts = [](const WorkerScopes& worker) { return worker.worker.facts->are_known; };
  if (!has_verdicts_ ||
      (!is_wanted_ && now < facts_until && !std::ranges::all_of(last_->workers, has_facts))) {
    return now < facts_until ? facts_until : Instant::never();  // a kill wakes the loop
  }
  if (is_wanted_) {
    ::sched_yield();  // a worker that was signalled may wait for this processor
  }
  finish();
  return stage_ == Stage::kRecorded ? Instant::never() : now + kFactsLimit;
}

void Incidents::read_workers(bool has_verdicts) {
  if (stage_ == Stage::kRecorded) {
    return;
  }
  has_verdicts_ = has_verdicts_ || has_verdicts;
  if (stage_ == Stage::kRead) {
    return;
  }
  const Instant until = Instant::now() + kReadLimit;
  last_->workers.clear();
  last_->omitted = 0;
  unread_.clear();
  core_.workers.for_each([&](const Worker& worker) {
    if (worker.is_dying()) {
      return;  // it is in the incident that it is killed for
    }
    // No signal waits for memory for the list of a worker.
    const bool is_read = (worker.has_kill() || Instant::now() < until) &&
                         messages::guard([&] { read_worker(worker); });
    if (!is_read) {
      unread_.push_back(worker.process);
    }
  });
  stage_ = Stage::kRead;
}

// Also a worker in no scope: the others may wait for it.
void Incidents::read_worker(const Worker& worker) {
  std::size_t count = 0;
  std::vector<SlotReading> scopes =
      core_.policy.open_scopes_of(worker, incident_share(core_.workers.count()), &count);
  last_->workers.push_back({worker, std::move(scopes), {}, worker.pages});
  last_->omitted += count - std::min(last_->workers.back().scopes.size(), count);
}

void Incidents::finish() {
  if (stage_ != Stage::kRecorded) {
    messages::guard([this] { record(); });
  }
}

void Incidents::record() {
  read_workers(false);
  for (; !unread_.empty(); unread_.pop_back()) {
    if (const Worker* const worker = core_.workers.find(*unread_.back())) {
      read_worker(*worker);
      ++last_->read_late;
    }
  }
  // No signal waits for this. What a worker has ended since the verdict is listed, too.
  last_->ended_omitted = 0;
  for (WorkerScopes& worker : last_->workers) {
    worker.ended.clear();  // of an attempt for which there was no memory
    for (const auto& page : worker.pages) {
      page->add_ended_scopes(worker.ended);
    }
    last_->ended_omitted +=
        shorten_ended_scopes(worker.ended, last_->when.mono, last_->workers.size());
  }
  core_.log->append_detail(core_.records.incident(*last_));
  stage_ = Stage::kRecorded;
  last_->workers = {};
}

void Incidents::start_peers(const WorkerIdentity& worker, Instant now) {
  const KillPolicy& policy = core_.settings.kill;
  const std::optional<std::string> job = job_of(*worker.facts);
  if (policy.evidence == EvidenceLevel::kNone || policy.dry_run || !job ||
      !jobs_.insert(*job).second) {
    return;
  }
  std::vector<const Worker*> peers = peers_of(core_, worker);
  std::erase_if(peers, [](const Worker* peer) { return peer->has_kill(); });
  const std::size_t count = std::min(peers.size(), kMaxPeers);
  const auto omitted = std::make_shared<std::size_t>(peers.size() - count);
  peers.resize(count);
  for (const Worker* const each : peers) {
    const auto peer = peers_.insert(peers_.end(), Peer{*each, last_->id, omitted, nullptr});
    peer->order = core_.desk.collect(
        {.worker = each->process,
         .level = policy.evidence,
         .use = EvidenceFor::kPeers,
         .until = now + policy.evidence_timeout,
         .python = core_.python_dump_of(*each)},
        now, [this, peer](const Evidence& evidence, bool) {
          std::list<Peer> done;  // it waits no more, also if its record cannot be made
          done.splice(done.end(), peers_, peer);
          core_.log->append_detail(core_.records.peer_evidence(
              peer->worker, peer->incident, evidence, std::exchange(*peer->omitted, 0)));
        });
  }
}

void Incidents::withdraw_peer(const Process& worker) {
  peers_.remove_if([&](const Peer& peer) {
    return peer.worker.process.get() == &worker && !(peer.order && peer.order->has_begun());
  });
}

bool Incidents::is_gathering_for(const WorkerIdentity& worker) const {
  const std::optional<std::string> job = job_of(*worker.facts);
  return job && std::ranges::any_of(peers_, [&](const Peer& peer) {
           return peer.order && job == job_of(*peer.worker.facts);
         });
}

void Incidents::end_peers() {
  for (const Peer& peer : std::list(peers_)) {
    if (peer.order) {
      peer.order->end();  // its record takes it out
    }
  }
  peers_.clear();
}

}  // namespace filetimer
