// SPDX-License-Identifier: MIT
#include "timer_server/kills/kills.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "common/due.hpp"
#include "common/duration_text.hpp"
#include "common/scope_page.hpp"
#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

std::vector<pid_t> this_process_and_ancestors() {
  std::vector<pid_t> pids = ancestors_of(::getpid());
  pids.push_back(::getpid());
  return pids;
}

CommandOccasion occasion_of(const KillState& order, std::string_view verdict) {
  const Expiry& first = order.expiries.front();
  return {.worker = order.worker,
          .id = first.id,
          .incident = first.incident,
          .scope = first.scope.name,
          .verdict = verdict};
}

// Returns the scope on which a scan has given the verdict; nothing if its page was cut short. A
// judged scope stays in its slot until the kill has ended, so its name and times can be read.
std::optional<Expiry> expiry_of(Core& core, const PageVerdict& place) {
  auto reading = place.page->read(place.slot, slot_word::expired(place.word));
  if (!reading) {
    reading = place.page->read(place.slot, slot_word::kReleasedLate);
  }
  if (!reading) {
    return std::nullopt;
  }
  Expiry expiry;
  expiry.scope = core.policy.view_of(*reading);
  SlotReading& scope = expiry.scope;
  scope.deadline = place.deadline;
  if (grace_before_due(scope.has(slot_flag::kSignalFirst), scope.signal,
                       scope.grace().value_or(Duration::zero())) > Duration::zero()) {
    scope.signal = SIGKILL;  // the first signal was sent when the timeout had passed
  }
  expiry.place = place;
  return expiry;
}

// Ends the verdicts of a kill of the worker that has ended.
void finish_scopes(Core& core, Worker& worker, std::span<const Expiry> expiries) {
  // A worker that is alive after its kill is watched again. The scopes of one that has exited have
  // ended with the kill: they are not recorded as left open.
  if (!worker.is_dying() || worker.process->is_alive()) {
    worker.kill = Worker::Kill::kNone;
  }
  for (const Expiry& expiry : expiries) {
    const PageVerdict& place = expiry.place;
    if (!place.page) {
      continue;
    }
    place.page->finish(place.slot, place.word);
    if (place.page == worker.pipe) {
      worker.left_on_pipe = Instant::now();
    }
  }
  if (worker.pipe) {
    worker.pipe->end_cancelled();
  }
  core.wants_scan |= !worker.pages.empty();  // it has scopes to be judged
  core.workers.note_unsaved(worker);
}

}  // namespace

Kills::Kills(Core& core, Warnings& warnings, Commands& commands)
    : core_(core),
      warnings_(warnings),
      commands_(commands),
      incidents_(core),
      excluded_(this_process_and_ancestors()) {}

bool Kills::carry_out(const DeadlineScan::Found& found, const ClockReading& now) {
  if (!found.due.empty()) {
    look_for_ancestors(now.mono);
  }
  bool has_begun_all = true;
  for (const DeadlineScan::DueWorker& due : found.due) {
    has_begun_all &= messages::guard([&] { start_kill(due, now); });  // the others must be begun
  }
  for (Worker* const worker : found.held_up) {
    if (const auto kill = kill_of_.find(worker->process.get()); kill != kill_of_.end()) {
      kill->second->held_up_at = now.mono;
      kill->second->hurry_from = std::min(kill->second->hurry_from, now.mono);
    } else if (worker->process->is_alive()) {  // a worker that has exited is removed
      // Its kill could not be begun or ended for want of memory.
      worker->kill = Worker::Kill::kNone;
      core_.wants_scan = true;
    }
  }
  for (const auto& kill : kills_) {
    if (kill->hurry_from.is_never()) {
      continue;
    }
    const bool is_held_up = kill->held_up_at == now.mono;  // else the scope was released in time
    kill->hurry_from = is_held_up ? kill->hurry_from : Instant::never();
    if (kill->stage == Stage::kKilled) {
      const Instant end = end_of_wait(*kill);
      kill->next_step_at = is_held_up ? std::min(kill->next_step_at, end) : end;
    }
  }
  return has_begun_all;
}

void Kills::take_back_lost_verdicts() {
  core_.workers.for_each([this](Worker& worker) {
    const bool has_kill = std::ranges::any_of(kills_, [&](const auto& kill) {
      return kill->stage != Stage::kEnded && &kill->worker() == worker.process.get();
    });
    if (has_kill || !worker.process->is_alive()) {
      return;
    }
    worker.kill = Worker::Kill::kNone;
    for (const auto& page : worker.pages) {
      for (const WorkerPage::Judged& judged : page->judged_slots()) {
        page->reopen(judged.slot, judged.word);
      }
    }
  });
}

void Kills::sample(std::span<Worker* const> workers, Instant now) {
  const bool has_helpers = policy_.evidence == EvidenceLevel::kStacks &&
                           core_.side_threads.waiting(SideThreads::Lane::kSlow) == 0;
  std::size_t sampled = 0;
  for (Worker* const worker : workers) {
    if (now - worker->cpu_sampled < CpuSample::kLife || sampled++ >= kMostSampled) {
      continue;
    }
    worker->cpu_sampled = now;
    const bool has_helper = has_helpers && sampled <= kMostHelpers;
    core_.side_threads.run(
        [this, weak = std::weak_ptr(worker->process), until = now + policy_.evidence_timeout / 2,
         has_helper]() -> SideThreads::Delivery {
          const auto process = weak.lock();
          if (!process) {
            return {};
          }
          const auto sample = std::make_shared<CpuSample>(read_cpu_sample(process->pid));
          if (has_helper) {
            if (auto helper = StacksHelper::start(process->pid, process->start_time, until)) {
              sample->helper = std::make_shared<StacksHelper>(std::move(*helper));
            }
          }
          return [this, process, sample] {
            // Stored only if a scan follows, which would drop the sample and its helper.
            Worker* const found = core_.workers.find(*process);
            if (found != nullptr && found->is_due_soon && !found->has_kill()) {
              found->cpu_sample = sample;
            }
          };
        },
        has_helper ? SideThreads::Lane::kSlow : SideThreads::Lane::kQuick);
  }
}

// A process with the pid of an ancestor that has ended is another one.
void Kills::look_for_ancestors(Instant now) {
  if (now - ancestors_seen_ > kAncestorsHold) {
    ancestors_seen_ = now;
    excluded_ = this_process_and_ancestors();
  }
}

void Kills::rehearse(const Worker& worker) {
  look_for_ancestors(Instant::now());
  KillState order;
  order.worker = worker;
  order.open_scopes = core_.policy.open_scopes_of(worker);
  order.expiries.emplace_back();
  std::size_t room = core_.log->room_for_details();
  (void)records_of_verdict(order, room);
  (void)may_be_forking(worker.process->pid);
  (void)children_of(worker.process->pid, worker.process->pid);
  (void)worker.process->send_signal(0);
}

void Kills::start_kill(const DeadlineScan::DueWorker& due, const ClockReading& now) {
  Worker& worker = *due.worker;
  warnings_.flush(worker.process.get(), "a deadline of the worker came first");
  incidents_.withdraw_peer(*worker.process);
  KillState order;
  order.worker = worker;
  order.open_scopes = core_.policy.open_scopes_of(worker);
  order.early = std::exchange(worker.cpu_sample, nullptr);
  for (const PageVerdict& scope : due.scopes) {
    std::optional<Expiry> expiry = expiry_of(core_, scope);
    if (!expiry) {
      continue;
    }
    expiry->id = core_.records.next_id(Records::Named::kExpiry);
    expiry->incident = incidents_.add(expiry->id, now);
    expiry->judged = now.mono;
    order.expiries.push_back(std::move(*expiry));
  }
  if (order.expiries.empty()) {
    return;
  }
  note_message(order, now.mono);
  start(&worker, std::move(order), now.mono);
  for (const Expiry& expiry : kills_.back()->order.expiries) {
    ++core_.counters.expired[expiry.scope.name];
    core_.counters.lateness.add(std::max(expiry.judged - expiry.scope.deadline, Duration::zero()));
  }
}

void Kills::note_message(const KillState& order, Instant now) {
  const Expiry& first = order.expiries.front();
  const auto means = order.means();
  messages_.push_back(fmt::format("{} expired in '{}' after {}: {} ({})",
                                  description_of(order.worker), first.scope.name,
                                  duration_for_reading(now - first.scope.acquired),
                                  core_.settings.kill.dry_run ? "spared, dry run"
                                  : !means                    ? "spared, signal 0"
                                           : "to be sent " + signal_name(means->signal),
                                  first.id));
}

void Kills::start(Worker* worker, KillState order, Instant now) {
  auto begun = std::make_unique<Kill>(std::move(order), policy_.mode, excluded_);
  Kill* const kill = begun.get();
  kill->next_step_at = now + kFactsLimit;
  if (kills_.size() == kills_.capacity()) {
    kills_.reserve(2 * kills_.size() + 1);  // without memory the kill is in neither table
  }
  kill_of_.try_emplace(&kill->worker(), kill);
  kills_.push_back(std::move(begun));
  if (worker != nullptr) {
    worker->kill = Worker::Kill::kBegun;
  }
  const auto means = kill->order.means();
  if (means && means->is_for_worker_alone) {
    kill->targets.spare_others();
  }
  const auto asks_for_signal = [](const Expiry& expiry) { return expiry.scope.signal > 0; };
  // Also for a scope that was left just before the signal, when its targets had been stopped.
  if (kill->order.may_have_stopped && std::ranges::any_of(kill->order.expiries, asks_for_signal)) {
    kill->targets.adopt(kill->order.sent);
  }
  if (!kill->order.sent.empty() && means) {
    note_means(*kill, *means);
    // The grace period has run on since the signal. The targets are those that can be found now.
    wait_after_signal(*kill);
    kill->targets.watch_ends(core_.loop, [&news = kill->has_news] { news = true; });
  }
}

void Kills::note_worker_ended(const Process& worker) {
  if (const auto found = kill_of_.find(&worker); found != kill_of_.end()) {
    found->second->has_news = true;
    note_death(*found->second);
  }
}

Instant Kills::advance(Instant now, Instant woke) {
  // What is appended meanwhile is written behind the signals.
  const RecordLog::Hold hold(*core_.log);
  note_synced();
  incidents_.read_workers(record_verdicts(now));
  const Instant next = take_steps(now, woke);
  const Instant next_of_incident = incidents_.advance(now);
  // A message wakes another thread, for which no signal waits.
  for (const std::string& message : std::exchange(messages_, {})) {
    messages::say(messages::Level::kInfo, message);
  }
  return std::min(next, next_of_incident);
}

void Kills::note_synced() {
  const std::uint64_t synced = core_.log->synced();
  core_.kill_files.remove_synced(synced);
  for (const auto& kill : kills_) {
    KillState& order = kill->order;
    if (order.record_number != 0 && order.record_number <= synced) {
      core_.kill_files.note_recorded(order.id());
      order.record_number = 0;
    }
  }
}

bool Kills::record_verdicts(Instant now) {
  const Duration evidence_limit =
      has_short_waits_ ? std::min(kShortWait, policy_.evidence_timeout) : policy_.evidence_timeout;
  std::size_t room = core_.log->room_for_details();
  bool has_any = false;
  for (const auto& kill : kills_) {
    KillState& order = kill->order;
    if (kill->stage != Stage::kFacts ||
        (!order.worker.facts->are_known && now < kill->next_step_at)) {
      continue;
    }
    kill->next_step_at = now + kFactsLimit;  // for want of memory
    messages::guard([&] {                    // the other kills go on
      if (order.records.empty()) {           // else an earlier server has begun it
        std::vector<std::string> records = records_of_verdict(order, room);
        core_.kill_files.begin(order.worker, order.expiries, records, policy_.dry_run);
        order.record_number = core_.log->append(std::move(records));
      }
      kill->stage = Stage::kRecorded;
      has_any = true;
      find_releases(*kill);
      kill->gathering_until = now + evidence_limit;
      if (policy_.evidence != EvidenceLevel::kNone && !order.has_evidence) {
        start_evidence(*kill, now);
      }
      start_evidence_of_others(order, now);
    });
  }
  return has_any;
}

std::vector<std::string> Kills::records_of_verdict(const KillState& order, std::size_t& room) {
  std::vector<std::string> records;
  for (const Expiry& expiry : order.expiries) {
    // The first record alone lists the open scopes: a worker may have a thousand expiries as well.
    const bool is_first = &expiry == &order.expiries.front();
    records.push_back(core_.records.expired(
        order.worker, expiry, is_first ? order.open_scopes : std::vector<SlotReading>{}, room));
    room -= std::min(room, records.back().size());
  }
  return records;
}

void Kills::start_evidence_of_others(const KillState& order, Instant now) {
  if (!incidents_.is_last(order.expiries.front().incident)) {
    return;  // an earlier server has begun the kill, and the incident
  }
  commands_.start_evidence(occasion_of(order, "expired"), now);
  if (order.means()) {
    incidents_.start_peers(order.worker, now);
  }
}

// The first signal waits for this evidence: later it would show a signalled process.
void Kills::start_evidence(Kill& kill, Instant now) {
  EvidenceRequest request{.worker = kill.order.worker.process,
                          .level = policy_.evidence,
                          .until = kill.gathering_until,
                          .early = std::move(kill.order.early)};
  // Python stacks need a signal. A worker that is to get no signal does not get that one either.
  const Worker* const worker = core_.workers.find(kill.worker());
  if (worker != nullptr && !policy_.dry_run && kill.order.means()) {
    request.python = core_.python_dump_of(*worker);
  }
  kill.evidence =
      core_.desk.collect(std::move(request), now, [this, &kill](const Evidence& evidence, bool) {
        const EvidenceOrder done = std::exchange(kill.evidence, nullptr);  // also after a failure
        std::string record = core_.records.evidence(kill.order.worker, kill.order.id(), evidence);
        core_.kill_files.note_evidence(kill.order.id(), record);
        kill.order.record_number = core_.log->append_detail(std::move(record));
      });
}

void Kills::limit_evidence(Kill& kill, Instant until) {
  kill.gathering_until = std::min(kill.gathering_until, until);
  if (kill.evidence) {
    kill.evidence->end_by(until);
  }
}

// Returns whether the evidence is recorded, and that of incident and job is gathered or has had its
// time.
bool Kills::is_ready_for_signal(Kill& kill, Instant now) {
  const bool is_gathering =
      !kill.evidence && (commands_.is_gathering(kill.order.expiries.front().incident) ||
                         incidents_.is_gathering_for(kill.order.worker));
  const bool all_is_gathered = now >= kill.gathering_until || !is_gathering;
  kill.next_step_at = all_is_gathered ? Instant::never() : kill.gathering_until;
  return !kill.evidence && all_is_gathered;
}

Duration Kills::shortest_grace() const {
  Duration shortest = kForever;
  for (const auto& kill : kills_) {
    if (kill->stage == Stage::kSignalled) {
      shortest = std::min(shortest, *kill->means.grace);
    }
  }
  return shortest;
}

void Kills::extend_grace(Duration missed) {
  for (const auto& kill : kills_) {
    if (kill->stage >= Stage::kSignalled && !has_short_waits_) {
      kill->next_step_at = kill->next_step_at + missed;
    }
  }
}

void Kills::shorten_waits(Instant now) {
  has_short_waits_ = true;
  const Instant until = now + kShortWait;
  for (const auto& kill : kills_) {
    if (kill->stage == Stage::kSignalled) {
      kill->next_step_at = now;
    } else if (kill->stage == Stage::kRecorded) {
      limit_evidence(*kill, until);
    }
  }
}

void Kills::abandon() {
  (void)signal_stopped();  // after an advance() that failed no target stays stopped
  for (const auto& kill : kills_) {
    if (kill->stage == Stage::kEnded) {
      continue;
    }
    if (kill->order.sent.empty()) {
      if (kill->stage != Stage::kFacts) {  // else the next server judges the scope
        end(*kill, KillVerdict::kSpared, "the server stopped before the signal");
      }
      continue;
    }
    note_death(*kill);
    end_with_current_outcome(*kill);
  }
  kills_.clear();
  kill_of_.clear();
  incidents_.finish();
  incidents_.end_peers();
}

void Kills::end(Kill& kill, KillVerdict verdict, std::string_view reason) {
  Records::Outcome outcome{.verdict = verdict, .reason = reason};
  if (kill.last_evidence && verdict == KillVerdict::kUnkillable) {
    outcome.held_by = &*kill.last_evidence;
  }
  if (kill.worker_died && kill.worker().pidfd) {  // else it died while no server ran
    outcome.dead_after = *kill.worker_died - kill.order.sent.front().when.mono;
  }
  const std::uint64_t number = record_outcome(kill.order, outcome);
  // Not before: for want of memory the next iteration records the outcome. Nor later: it would
  // record it twice.
  kill.stage = Stage::kEnded;
  const auto found = kill_of_.find(&kill.worker());
  if (found != kill_of_.end() && found->second == &kill) {
    kill_of_.erase(found);
  }
  finish(kill.order, outcome, number);
}

std::uint64_t Kills::record_outcome(const KillState& order, Records::Outcome outcome) {
  outcome.signals = order.sent;
  outcome.cancelled = order.cancelled;
  outcome.list_bytes = core_.log->room_for_details();
  std::vector<std::string> records;
  for (const Expiry& expiry : order.expiries) {
    records.push_back(core_.records.killed(order.worker, expiry, outcome));
    outcome.cancelled = {};  // the first record alone lists them: there may be a thousand of both
  }
  core_.kill_files.end(order.id(), outcome.verdict, records);
  return core_.log->append(std::move(records));
}

// The scopes come first: they are judged again also if what follows fails for want of memory.
void Kills::finish(const KillState& order, const Records::Outcome& outcome, std::uint64_t number) {
  const std::shared_ptr<const Process>& process = order.worker.process;
  if (Worker* const worker = core_.workers.find(*process)) {
    finish_scopes(core_, *worker, order.expiries);
  }
  core_.kill_files.remove_after(order.expiries, process->is_alive() ? process.get() : nullptr,
                                number);
  incidents_.want_record();
  const std::string& scope = order.expiries.front().scope.name;
  std::erase_if(unkillable_, [](const auto& each) { return !each->is_alive(); });
  if (outcome.verdict == KillVerdict::kUnkillable) {
    ++core_.counters.unkillable[scope];
    if (std::ranges::find(unkillable_, process) == unkillable_.end()) {
      unkillable_.push_back(process);
    }
    messages::error("{}, {} ({})", description_of(order.worker), outcome.reason, order.id());
  } else if (outcome.verdict == KillVerdict::kDead) {
    ++core_.counters.killed[scope];
    messages::info("{} is dead ({})", description_of(order.worker), order.id());
  }
  start_hook(order, outcome.verdict, number);
}

void Kills::start_hook(const KillState& order, KillVerdict verdict, std::uint64_t record_number) {
  CommandOccasion occasion = occasion_of(order, verdict_name(verdict));
  occasion.record_number = record_number;
  commands_.add_hook(std::move(occasion), Instant::now());
}

std::size_t Kills::unkillable() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(unkillable_, [](const auto& process) { return process->is_alive(); }));
}

}  // namespace filetimer
