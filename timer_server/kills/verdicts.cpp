// SPDX-License-Identifier: MIT
#include "timer_server/kills/verdicts.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/due.hpp"
#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

bool are_of_one_job(const std::optional<WorkerFacts>& a, const std::optional<WorkerFacts>& b) {
  return a && b && a->job_id == b->job_id && has_job(*a) && has_job(*b);
}

}  // namespace

std::size_t shorten_ended_scopes(EndedScopesByName& ended, Instant when, std::size_t workers) {
  const Instant since{std::max<std::int64_t>(when.ns - Duration{kIncidentPast}.count(), 0)};
  std::vector<Instant> times;
  for (const auto& [name, scopes] : ended) {
    for (const EndedReading& scope : scopes) {
      if (scope.ended >= since) {
        times.push_back(scope.ended);
      }
    }
  }
  const std::size_t share = kMaxIncidentEndedScopes / std::max<std::size_t>(workers, 1);
  Instant first = since;
  if (times.size() > share) {
    if (share == 0) {
      ended.clear();
      return times.size();
    }
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
  return times.size() - std::min(kept, times.size());
}

Verdicts::Verdicts(Core& core, KillFiles& files, Warnings& warnings, Commands& commands,
                   PeerEvidence& peers)
    : core_(core),
      files_(files),
      warnings_(warnings),
      commands_(commands),
      peers_(peers),
      ladder_(
          core, files,
          {.released_at = [this](const Process& process,
                                 const Expiry& expiry) { return released_at(process, expiry); },
           .on_signal = [this](const Process& process,
                               bool is_final) { return on_signal(process, is_final); },
           .on_end = [this](const KillOrder& order, const KillEnd& end) { on_end(order, end); },
           .on_recorded = [this](const KillOrder& order, Instant now) { on_recorded(order, now); },
           .is_gathering = [this](const KillOrder& order) { return is_gathering(order); }}) {}

void Verdicts::carry_out(const std::vector<DeadlineScan::DueScope>& due, const ClockReading& now) {
  std::vector<Worker*> workers;  // the one whose deadline came first stands first
  std::unordered_map<Worker*, DueOfWorker> of_worker;
  for (const DeadlineScan::DueScope& scope : due) {
    auto& scopes = of_worker[scope.worker];
    if (scopes.empty()) {
      workers.push_back(scope.worker);
    }
    scopes.push_back(&scope);
  }
  for (Worker* const worker : workers) {
    start_kill(*worker, of_worker[worker], now);
  }
}

void Verdicts::sample(std::span<Worker* const> workers, Instant now) {
  std::size_t sampled = 0;
  for (Worker* const worker : workers) {
    if (now - worker->cpu_sampled < CpuSample::kLife || sampled++ >= kMostSampled) {
      continue;
    }
    worker->cpu_sampled = now;
    core_.side_threads.run(
        [this, process = worker->process]() -> SideThreads::Delivery {
          auto sample = std::make_shared<const CpuSample>(read_cpu_sample(process->pid));
          return [this, process, sample = std::move(sample)] {
            Worker* const found = core_.workers.find(process->pid);
            if (found != nullptr && found->process == process) {
              found->cpu_sample = sample;
            }
          };
        },
        SideThreads::Lane::kQuick);
  }
}

void Verdicts::start_kill(Worker& worker, const DueOfWorker& due, const ClockReading& now) {
  warnings_.flush(*worker.process, "a deadline of the worker came first");
  peers_.withdraw(*worker.process);
  KillOrder order;
  order.worker = WorkerIdentity::of(worker);
  order.open_scopes = core_.policy.open_scopes_of(worker);
  order.python = core_.python_dump_of(worker);
  order.early = worker.cpu_sample;
  for (const DeadlineScan::DueScope* scope : due) {
    std::optional<Expiry> expiry = expiry_of(*scope);
    if (!expiry) {
      continue;
    }
    Incident& incident = incident_at(now);
    expiry->id = core_.records.next_expiry_id();
    expiry->incident = incident.id;
    expiry->judged = now.mono;
    if (incident_stage_ != IncidentStage::kRecorded) {
      incident.expiries.push_back(expiry->id);
    }
    order.expiries.push_back(std::move(*expiry));
  }
  if (order.expiries.empty()) {
    return;
  }
  for (const Expiry& expiry : order.expiries) {
    ++core_.counters.expired[expiry.scope.name];
    core_.counters.lateness.add(
        std::max(expiry.judged - expiry.scope.terms.deadline, Duration::zero()));
  }
  note_message(order, now.mono);
  ++worker.kills;
  ladder_.start(std::move(order), now.mono);
}

void Verdicts::resume(Worker& worker, KillOrder order, Instant now) {
  messages::warning("pid {} was to be killed by a server that has ended ({}): going on with it",
                    worker.process->pid, order.expiries.front().id);
  ++worker.kills;
  ladder_.start(std::move(order), now);
}

void Verdicts::end(const KillOrder& order, const Records::Outcome& outcome) {
  ladder_.end(order, outcome);
}

void Verdicts::note_message(const KillOrder& order, Instant now) {
  const Expiry& first = order.expiries.front();
  const auto means = order.means();
  messages_.push_back(fmt::format("{} expired in '{}' after {}: {} ({})",
                                  description_of(order.worker), first.scope.name,
                                  duration_for_reading(now - first.scope.terms.acquired),
                                  core_.settings.kill.dry_run ? "spared, dry run"
                                  : !means                    ? "spared, signal 0"
                                           : "to be sent " + signal_name(means->signal),
                                  first.id));
}

Instant Verdicts::advance(Instant now) {
  // What is appended meanwhile is written behind the signals.
  const RecordLog::Hold hold(*core_.log);
  files_.remove_synced(core_.log->synced());
  const bool has_recorded = ladder_.record_verdicts(now);
  if (incident_stage_ == IncidentStage::kJudged) {
    read_workers();
  }
  if (incident_stage_ == IncidentStage::kRead && has_recorded) {
    is_first_recorded_ = true;
  }
  Instant next = ladder_.advance(now);
  if (incident_stage_ == IncidentStage::kRead) {
    next = std::min(next, advance_incident(now));
  }
  // A message wakes another thread, for which no signal waits.
  for (const std::string& message : std::exchange(messages_, {})) {
    messages::say(messages::Level::kInfo, message);
  }
  return next;
}

void Verdicts::on_recorded(const KillOrder& order, Instant now) {
  const Expiry& first = order.expiries.front();
  // An order of an earlier server has the incident of that server.
  if (incident_ && first.incident == incident_->id &&
      commands_.wants_evidence(order.worker, first.incident)) {
    std::vector<WorkerIdentity> workers{order.worker};
    for (const Worker* const peer : peers_of(order.worker)) {
      workers.push_back(WorkerIdentity::of(*peer));
    }
    commands_.start_evidence({.worker = order.worker,
                              .id = first.id,
                              .incident = first.incident,
                              .scope = first.scope.name,
                              .verdict = "expired"},
                             workers, now);
  }
  if (order.means() && !order.has_evidence) {
    start_evidence_of_peers(order.worker, first.incident, now);
  }
}

bool Verdicts::is_gathering(const KillOrder& order) const {
  const std::optional<WorkerFacts>& facts = *order.worker.facts;
  return commands_.is_gathering(order.expiries.front().incident) ||
         (facts && has_job(*facts) && peers_.is_running_for(facts->job_id));
}

void Verdicts::start_evidence_of_peers(const WorkerIdentity& worker, const std::string& incident,
                                       Instant now) {
  if (!peers_.is_wanted() || !*worker.facts || !has_job(**worker.facts) ||
      !peers_.is_first_of_job(incident, (*worker.facts)->job_id)) {
    return;
  }
  std::vector<const Worker*> peers = peers_of(worker);
  std::erase_if(peers, [](const Worker* peer) { return peer->kills > 0; });
  const std::size_t omitted = peers.size() - std::min(peers.size(), PeerEvidence::kMaxPeers);
  peers.resize(peers.size() - omitted);
  std::vector<PeerEvidence::Peer> members;
  for (const Worker* const peer : peers) {
    members.push_back({WorkerIdentity::of(*peer), core_.python_dump_of(*peer)});
  }
  peers_.start(incident, (*worker.facts)->job_id, std::move(members), omitted, now);
}

void Verdicts::abandon() {
  ladder_.abandon();
  if (incident_stage_ != IncidentStage::kRecorded) {
    record_incident();
  }
}

Incident& Verdicts::incident_at(const ClockReading& now) {
  if (!incident_ || now.mono - incident_->when.mono > kIncidentWindow) {
    if (incident_stage_ != IncidentStage::kRecorded) {
      record_incident();
    }
    incident_.emplace();
    incident_->id = core_.records.next_incident_id();
    incident_->when = now;
    incident_stage_ = IncidentStage::kJudged;
    is_first_recorded_ = false;
    signals_before_ = ladder_.signals();
    has_outcome_ = false;
  }
  return *incident_;
}

// Returns when it must be called again, or never().
Instant Verdicts::advance_incident(Instant now) {
  if (!is_incident_due(now)) {
    return incident_->when.mono + KillLadder::kFactsLimit;
  }
  if (ladder_.signals() != signals_before_) {
    ::sched_yield();  // a worker that was signalled may wait for this processor
  }
  record_incident();
  return Instant::never();
}

bool Verdicts::is_incident_due(Instant now) const {
  const auto has_facts = [](const WorkerScopes& worker) {
    return worker.worker.facts->has_value();
  };
  return is_first_recorded_ && (has_outcome_ || ladder_.signals() != signals_before_ ||
                                now >= incident_->when.mono + KillLadder::kFactsLimit ||
                                std::ranges::all_of(incident_->workers, has_facts));
}

// Workers with a kill are read in any case: the signal ends their scopes on the pipe.
void Verdicts::read_workers() {
  const Instant until = Instant::now() + kReadLimit;
  incident_->workers.clear();
  incident_pages_.clear();
  incident_->omitted = 0;
  unread_.clear();
  core_.workers.for_each([&](const Worker& worker) {
    if (worker.dying) {
      return;  // it is in the incident that it is killed for
    }
    if (worker.kills == 0 && Instant::now() >= until) {
      unread_.push_back(worker.process);
    } else {
      read_worker(worker);
    }
  });
  incident_stage_ = IncidentStage::kRead;
}

// Also a worker in no scope: the others may wait for it.
void Verdicts::read_worker(const Worker& worker) {
  std::size_t count = 0;
  std::vector<ScopeView> scopes =
      core_.policy.open_scopes_of(worker, incident_share(core_.workers.count()), &count);
  incident_->omitted += count - std::min(scopes.size(), count);
  incident_->workers.push_back({WorkerIdentity::of(worker), std::move(scopes)});
  incident_pages_.push_back(worker.pages);
}

// No signal waits for this. What a worker has ended since the verdict is listed, too.
void Verdicts::read_ended_scopes() {
  for (std::size_t i = 0; i < incident_->workers.size(); ++i) {
    EndedScopesByName& ended = incident_->workers[i].ended;
    for (const auto& page : incident_pages_[i]) {
      page->add_ended_scopes(ended);
    }
    incident_->ended_omitted +=
        shorten_ended_scopes(ended, incident_->when.mono, incident_->workers.size());
  }
}

void Verdicts::record_incident() {
  if (incident_stage_ == IncidentStage::kJudged) {
    read_workers();
  }
  for (const auto& process : std::exchange(unread_, {})) {
    const Worker* const worker = core_.workers.find(process->pid);
    if (worker != nullptr && worker->process == process) {
      read_worker(*worker);
      ++incident_->read_late;
    }
  }
  read_ended_scopes();
  core_.log->append_detail(core_.records.incident(*incident_));
  incident_stage_ = IncidentStage::kRecorded;
  incident_->workers = {};
  incident_pages_ = {};
}

// A judged scope stays in its slot until the kill has ended, so its name and times can be read.
std::optional<Expiry> Verdicts::expiry_of(const DeadlineScan::DueScope& due) const {
  const PageVerdict& place = due.place;
  auto reading = place.page->read(place.slot, slot_word::expired(place.word));
  if (!reading) {
    reading = place.page->read(place.slot, slot_word::kReleasedLate);
  }
  if (!reading) {
    return std::nullopt;
  }
  Expiry expiry;
  expiry.scope = core_.policy.view_of(*reading);
  ScopeTerms& terms = expiry.scope.terms;
  terms.deadline = due.deadline;
  if (grace_before_due(terms.signal_first, terms.signal, terms.grace.value_or(Grace{})) >
      Duration::zero()) {
    terms.signal = SIGKILL;  // the first signal was sent when the timeout had passed
  }
  expiry.place = place;
  return expiry;
}

std::optional<Instant> Verdicts::released_at(const Process& process, const Expiry& expiry) const {
  if (expiry.scope.terms.is_idle && has_worked_since(process, expiry.scope.terms.deadline)) {
    return Instant::now();
  }
  const PageVerdict& place = expiry.place;
  return place.page ? place.page->released_late_at(place.slot, place.word) : std::nullopt;
}

// Returns whether a worker whose idle timeout has expired is in a scope, or has left one since.
bool Verdicts::has_worked_since(const Process& process, Instant since) const {
  const Worker* const worker = core_.workers.find(process.pid);
  if (worker == nullptr) {
    return false;
  }
  bool has_worked = worker->left_on_pipe > since;
  for (const auto& page : worker->pages) {
    const WorkerPage::Activity activity = page->activity();
    has_worked = has_worked || activity.is_inside || activity.last_left > since;
  }
  return has_worked;
}

// The worker's other scopes of the pipe end with the signal, not with the verdict: until the signal
// a release can cancel the kill. Scopes on a page of the worker's own end with the worker.
std::vector<std::string> Verdicts::on_signal(const Process& process, bool is_final) {
  std::vector<std::string> cancelled;
  Worker* const worker = core_.workers.find(process.pid);
  if (worker == nullptr || worker->process.get() != &process) {
    return cancelled;
  }
  if (worker->pipe) {
    cancelled = worker->pipe->cancel_all();
  }
  for (const auto& page : worker->pages) {
    for (const SlotReading& reading : page->open_slots()) {
      if (is_final && slot_word::is_open(reading.word)) {
        cancelled.push_back(reading.name);
      }
    }
  }
  worker->dying = is_final;
  return cancelled;
}

std::vector<const Worker*> Verdicts::peers_of(const WorkerIdentity& worker) const {
  std::vector<const Worker*> peers;
  core_.workers.for_each([&](const Worker& other) {
    if (other.process != worker.process && !other.dying &&
        are_of_one_job(*other.facts, *worker.facts)) {
      peers.push_back(&other);
    }
  });
  std::ranges::sort(peers, {}, [](const Worker* peer) {
    return std::tuple((*peer->facts)->rank.value_or(INT_MAX), peer->process->pid);
  });
  return peers;
}

void Verdicts::on_end(const KillOrder& order, const KillEnd& end) {
  const std::string& id = order.expiries.front().id;
  const std::string& scope = order.expiries.front().scope.name;
  has_outcome_ = true;
  std::erase_if(unkillable_, [](const auto& process) { return !process->is_alive(); });
  if (end.verdict == KillVerdict::kUnkillable) {
    ++core_.counters.unkillable[scope];
    if (std::ranges::find(unkillable_, order.worker.process) == unkillable_.end()) {
      unkillable_.push_back(order.worker.process);
    }
    messages::error("{} is still alive after SIGKILL ({})", description_of(order.worker), id);
  } else if (end.verdict == KillVerdict::kDead) {
    ++core_.counters.killed[scope];
    messages::info("{} is dead ({})", description_of(order.worker), id);
  }
  start_hook(order, end);
  Worker* const worker = core_.workers.find(order.worker.process->pid);
  if (worker == nullptr || worker->process != order.worker.process) {
    return;
  }
  --worker->kills;
  // A worker that is alive after its kill is watched again. The scopes of one that has exited have
  // ended with the kill: they are not recorded as left open.
  worker->dying = worker->dying && !worker->process->is_alive();
  for (const Expiry& expiry : order.expiries) {
    const PageVerdict& place = expiry.place;
    if (!place.page) {
      continue;
    }
    place.page->finish(place.slot, place.word);
    if (place.page == worker->pipe) {
      worker->left_on_pipe = Instant::now();
    }
  }
  if (worker->kills == 0 && worker->pipe) {
    worker->pipe->end_cancelled();
  }
  core_.workers.note_unsaved(*worker);
  has_changed_scopes_ = has_changed_scopes_ || !worker->pages.empty();
}

void Verdicts::start_hook(const KillOrder& order, const KillEnd& end) {
  const Expiry& first = order.expiries.front();
  CommandOccasion occasion;
  occasion.worker = order.worker;
  occasion.id = first.id;
  occasion.incident = first.incident;
  occasion.scope = first.scope.name;
  occasion.verdict = verdict_name(end.verdict);
  occasion.record_number = end.record_number;
  commands_.add_hook(std::move(occasion), Instant::now());
}

std::size_t Verdicts::unkillable() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(unkillable_, [](const auto& process) { return process->is_alive(); }));
}

}  // namespace filetimer
