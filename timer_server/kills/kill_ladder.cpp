// SPDX-License-Identifier: MIT
#include "timer_server/kills/kill_ladder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

enum class Stage {
  kFacts,         // a side thread may still read the worker's command line and rank
  kRecorded,      // the verdict is in its kill file and queued in the log; evidence is collected
  kStopping,      // the targets are being stopped; the signal follows in the same advance()
  kSignalled,     // the first signal was sent; the grace period runs
  kKilled,        // SIGKILL was sent, or a first signal that no other follows
  kLastEvidence,  // the worker survived SIGKILL; evidence of what holds it is being collected
  kEnded,
};

std::vector<pid_t> this_process_and_ancestors() {
  std::vector<pid_t> pids = ancestors_of(::getpid());
  pids.push_back(::getpid());
  return pids;
}

std::string state_text(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  const auto stat = read_stat(folder);
  const auto wchan = read_small_file(folder + "/wchan");
  return fmt::format("pid {} is in state {}{}", pid, stat ? stat->state : '?',
                     wchan && *wchan != "0" ? " in " + *wchan : std::string{});
}

}  // namespace

struct KillLadder::Kill {
  Kill(KillOrder the_order, KillMode mode, std::span<const pid_t> excluded,
       const MayBeForking& may_be_forking)
      : order(std::move(the_order)),
        targets(order.worker.process, mode, excluded, may_be_forking) {}

  KillOrder order;
  KillTargets targets;
  Stage stage = Stage::kFacts;
  bool has_news = false;                  // a target has ended
  Instant next_step_at;                   // when step() must be called at the latest
  Instant gathering_until;                // of Listener::is_gathering
  EvidenceOrder evidence;                 // null: nothing is being collected
  std::optional<Evidence> last_evidence;  // of a worker that survived SIGKILL
  bool skips_grace = false;
  KillOrder::Means means;              // set with the first signal
  std::vector<std::string> cancelled;  // the worker's other scopes
  std::optional<Instant> worker_died;

  [[nodiscard]] const Process& worker() const { return *order.worker.process; }
};

std::optional<KillOrder::Means> KillOrder::means() const {
  std::optional<Means> means;
  for (const Expiry& expiry : expiries) {
    const ScopeTerms& terms = expiry.scope.terms;
    if (terms.signal <= 0 || expiry.released_at) {
      continue;
    }
    if (!means) {
      means = {terms.signal, terms.grace};
    } else if (terms.grace && (!means->grace || *terms.grace < *means->grace)) {
      means->grace = terms.grace;
    }
  }
  return means;
}

KillLadder::KillLadder(Core& core, KillFiles& files, Listener listener)
    : loop_(core.loop),
      policy_(core.settings.kill),
      records_(core.records),
      log_(*core.log),
      files_(files),
      desk_(core.desk),
      released_late_(core.counters.released_late),
      listener_(std::move(listener)),
      excluded_(this_process_and_ancestors()) {}

KillLadder::~KillLadder() = default;

void KillLadder::start(KillOrder order, Instant now) {
  auto kill = std::make_shared<Kill>(std::move(order), policy_.mode, excluded_, may_be_forking_);
  kill->skips_grace = has_short_waits_;
  kill->next_step_at = now + kFactsLimit;
  kills_of_[&kill->worker()].push_back(kill);
  if (kill->order.is_continued) {
    kill->targets.find();
    kill->targets.resume_stopped();
  }
  const auto means = kill->order.means();
  if (!kill->order.sent.empty() && means) {
    note_means(*kill, *means);
    // The grace period has run on since the signal. The targets are those that can be found now.
    wait_after_signal(*kill);
    kill->targets.watch_ends(loop_, [&news = kill->has_news] { news = true; });
  }
  kills_.push_back(std::move(kill));
}

// Called before the first signal is sent.
void KillLadder::note_means(Kill& kill, const KillOrder::Means& means) {
  kill.means = means;
  kill.cancelled = listener_.on_signal(kill.worker(), means.ends_in_sigkill());
}

void KillLadder::wait_after_signal(Kill& kill) {
  const SentSignal& sent = kill.order.sent.back();
  const bool is_last = sent.signal == SIGKILL || !kill.means.grace;
  kill.stage = is_last ? Stage::kKilled : Stage::kSignalled;
  kill.next_step_at = sent.when.mono + (is_last            ? policy_.kill_wait
                                        : kill.skips_grace ? Duration::zero()
                                                           : *kill.means.grace);
}

void KillLadder::note_worker_ended(const Process& worker) {
  if (const auto found = kills_of_.find(&worker); found != kills_of_.end()) {
    for (const auto& kill : found->second) {
      kill->has_news = true;
    }
  }
}

Instant KillLadder::advance(Instant now) {
  stop_budget_ = kStopLimit;
  note_recorded();
  record_verdicts(now);
  Instant next = Instant::never();
  bool has_signalled = false;
  do {
    has_freed_one_ = false;
    next = Instant::never();
    for (std::size_t i = 0; i < kills_.size(); ++i) {
      const std::shared_ptr<Kill> kill = kills_[i];  // step() may end it
      while (step(kill, now)) {
      }
      if (kill->stage != Stage::kEnded) {
        next = std::min(next, kill->next_step_at);
      }
    }
    std::erase_if(kills_, [](const auto& kill) { return kill->stage == Stage::kEnded; });
    has_signalled = signal_stopped();
  } while (has_freed_one_ || has_signalled);
  return next;
}

bool KillLadder::step(const std::shared_ptr<Kill>& kill, Instant now) {
  switch (kill->stage) {
    case Stage::kRecorded:
      return begin_first_signal(kill, now);
    case Stage::kSignalled:
    case Stage::kKilled:
      return wait_for_death(kill, now);
    case Stage::kLastEvidence:
      return finish_unkillable(*kill);
    case Stage::kFacts:
    case Stage::kStopping:
    case Stage::kEnded:
      break;
  }
  return false;
}

void KillLadder::note_recorded() {
  const std::uint64_t synced = log_.synced();
  for (const auto& kill : kills_) {
    KillOrder& order = kill->order;
    if (order.record_number != 0 && order.record_number <= synced) {
      files_.note_recorded(order.id());
      order.record_number = 0;
    }
  }
}

bool KillLadder::record_verdicts(Instant now) {
  std::vector<std::shared_ptr<Kill>> recorded;
  std::size_t room = log_.room_for_details();
  for (const auto& kill : kills_) {
    KillOrder& order = kill->order;
    if (kill->stage != Stage::kFacts) {
      continue;
    }
    if (!*order.worker.facts && now < kill->next_step_at) {
      continue;
    }
    find_releases(*kill);
    if (!order.is_continued) {
      std::vector<std::string> records = records_of_verdict(order, room);
      files_.begin(order.worker, order.expiries, records);
      order.record_number = log_.append(std::move(records));
    }
    recorded.push_back(kill);
  }
  const Duration evidence_limit = has_short_waits_
                                      ? std::min(kShortEvidenceLimit, policy_.evidence_timeout)
                                      : policy_.evidence_timeout;
  for (const auto& kill : recorded) {
    kill->stage = Stage::kRecorded;
    kill->gathering_until = now + evidence_limit;
    if (policy_.evidence != EvidenceLevel::kNone && !kill->order.has_evidence) {
      start_evidence(*kill, now);
    }
    listener_.on_recorded(kill->order, now);
  }
  return !recorded.empty();
}

std::vector<std::string> KillLadder::records_of_verdict(const KillOrder& order, std::size_t& room) {
  std::vector<std::string> records;
  for (const Expiry& expiry : order.expiries) {
    // The first record alone lists the open scopes: a worker may have a thousand expiries as well.
    const bool is_first = &expiry == &order.expiries.front();
    records.push_back(records_.expired(
        order.worker, expiry, is_first ? order.open_scopes : std::vector<ScopeView>{}, room));
    room -= std::min(room, records.back().size());
  }
  for (const Expiry& expiry : order.expiries) {
    if (expiry.released_at) {
      ++released_late_[expiry.scope.name];
      records.push_back(records_.released_late(order.worker, expiry));
    }
  }
  return records;
}

// The first signal waits for this evidence: later it would show a signalled process.
void KillLadder::start_evidence(Kill& kill, Instant now) {
  EvidenceRequest request{.worker = kill.order.worker.process,
                          .level = policy_.evidence,
                          .until = kill.gathering_until,
                          .early = kill.order.early};
  // Python stacks need a signal. A worker that is to get no signal does not get that one either.
  if (!policy_.dry_run && kill.order.means()) {
    request.python = kill.order.python;
  }
  kill.evidence =
      desk_.collect(std::move(request), now, [this, &kill](const Evidence& evidence, bool) {
        std::string record = records_.evidence(kill.order.worker, kill.order.id(), evidence);
        files_.note_evidence(kill.order.id(), record);
        kill.order.record_number = log_.append_detail(std::move(record));
        kill.evidence.reset();
      });
}

// Returns whether the evidence is recorded, and that of incident and job is gathered or has had its
// time.
bool KillLadder::is_ready_for_signal(Kill& kill, Instant now) {
  const bool evidence_is_in = !kill.evidence;
  const bool all_is_gathered = now >= kill.gathering_until || !listener_.is_gathering(kill.order);
  kill.next_step_at = all_is_gathered ? Instant::never() : kill.gathering_until;
  return evidence_is_in && all_is_gathered;
}

void KillLadder::end_without_signal(Kill& kill) {
  const auto was_released = [](const Expiry& expiry) { return expiry.released_at.has_value(); };
  end(kill, KillVerdict::kSpared,
      policy_.dry_run ? "dry run"
      : std::ranges::any_of(kill.order.expiries, was_released)
          ? "released late, but before the signal"
          : "signal 0");
}

// Without evidence, the signal of a worker without children waits for these system calls only: a
// poll of its pidfd, because the worker may have ended since its verdict; its state and SIGSTOP, so
// that it starts no process; one look at its children.
bool KillLadder::begin_first_signal(const std::shared_ptr<Kill>& kept, Instant now) {
  Kill& kill = *kept;
  const bool is_ready = is_ready_for_signal(kill, now);
  find_releases(kill);
  if (!is_ready) {
    return false;
  }
  const auto means = kill.order.means();
  if (policy_.dry_run || !means) {
    end_without_signal(kill);
    return true;
  }
  Kill* const other = other_kill_of_same_worker(kill);
  if (other != nullptr && (other->means.ends_in_sigkill() || other->stage == Stage::kStopping)) {
    // advance() comes back when the other kill has ended, or sent its signal.
    kill.next_step_at = Instant::never();
    return false;
  }
  if (!kill.worker().is_alive()) {
    end(kill, KillVerdict::kAlreadyGone, {});
    return true;
  }
  if (other != nullptr) {
    end(*other, KillVerdict::kSpared, "the worker survived the signal, and another scope expired");
  }
  note_means(kill, *means);
  begin_signal(kept);
  return true;
}

// Sends the signal that is due, or stops the targets for signal_stopped(). The last look for
// releases comes just before.
void KillLadder::begin_signal(const std::shared_ptr<Kill>& kept) {
  Kill& kill = *kept;
  if (policy_.mode == KillMode::kProcess) {
    send_due_signal(kill);
    kill.targets.resume();
    return;
  }
  stopping_.push_back(kept);
  kill.stage = Stage::kStopping;
  const bool may_go_on =
      kill.order.sent.empty() && kill.means.signal != SIGKILL && kill.means.grace;
  kill.targets.begin_stop(may_go_on ? KillTargets::Stop::kForking : KillTargets::Stop::kAll);
}

// Sends the signals of the kills whose targets are being stopped. Returns whether there are any. No
// signal is sent before all targets of all these kills have stopped: the kills wait together, and
// processes that end do not compete with looks at others for the processors. No target is resumed
// before all signals are sent: it may be a target of another of these kills.
bool KillLadder::signal_stopped() {
  if (stopping_.empty()) {
    return false;
  }
  stop_all_targets();
  for (const auto& kill : stopping_) {
    if (kill->stage == Stage::kStopping) {
      send_due_signal(*kill);
    }
  }
  Sessions sessions;
  for (const auto& kill : std::exchange(stopping_, {})) {
    if (kill->stage == Stage::kSignalled || kill->stage == Stage::kKilled) {
      kill->targets.send_to_session(kill->order.sent.back(), sessions);
    }
    kill->targets.resume();
    kill->targets.watch_ends(loop_, [&news = kill->has_news] { news = true; });
  }
  return true;
}

void KillLadder::send_due_signal(Kill& kill) {
  ++signals_;
  std::vector<SentSignal>& sent = kill.order.sent;
  sent.push_back(kill.targets.send(sent.empty() ? kill.means.signal : SIGKILL));
  wait_after_signal(kill);
  files_.note_signal(kill.order.id(), sent.back());
}

bool KillLadder::wait_for_death(const std::shared_ptr<Kill>& kept, Instant now) {
  Kill& kill = *kept;
  // Without a death and before the next step there is nothing to do. This saves a look at every
  // pidfd.
  if (!std::exchange(kill.has_news, false) && now < kill.next_step_at) {
    return false;
  }
  if (!kill.worker_died && !kill.worker().is_alive()) {
    kill.worker_died = Instant::now();  // `now` may be from before the signal
  }
  const std::vector<pid_t> alive = kill.targets.alive();
  if (alive.empty()) {
    // All of them may have exited while they were being stopped.
    std::erase_if(kill.order.sent, [](const SentSignal& sent) { return sent.pids.empty(); });
    const bool was_signalled = !kill.order.sent.empty();
    kill.worker_died = was_signalled ? kill.worker_died : std::nullopt;
    end(kill, was_signalled ? KillVerdict::kDead : KillVerdict::kAlreadyGone, {});
    return true;
  }
  if (now < kill.next_step_at) {
    return false;
  }
  if (kill.stage == Stage::kSignalled && !policy_.dry_run) {
    begin_signal(kept);
    return true;
  }
  if (kill.worker_died || kill.order.sent.back().signal != SIGKILL) {
    end_with_current_outcome(kill, alive);
  } else {
    start_last_evidence(kill, now);
  }
  return true;
}

void KillLadder::start_last_evidence(Kill& kill, Instant now) {
  kill.stage = Stage::kLastEvidence;
  kill.next_step_at = Instant::never();
  kill.evidence = desk_.collect({.worker = kill.order.worker.process,
                                 .level = EvidenceLevel::kProc,
                                 .until = now + policy_.evidence_timeout},
                                now, [&kill](Evidence evidence, bool) {
                                  kill.last_evidence = std::move(evidence);
                                  kill.evidence.reset();
                                });
}

bool KillLadder::finish_unkillable(Kill& kill) {
  if (!kill.worker().is_alive()) {
    kill.worker_died = Instant::now();
  } else if (kill.evidence) {
    return false;
  }
  end_with_current_outcome(kill, kill.targets.alive());
  return true;
}

void KillLadder::end_with_current_outcome(Kill& kill, const std::vector<pid_t>& alive) {
  if (kill.worker_died) {
    end(kill, KillVerdict::kDead,
        alive.empty()
            ? std::string{}
            : fmt::format("kill targets that are still alive: {}", fmt::join(alive, ", ")));
  } else if (kill.order.sent.back().signal == SIGKILL) {
    if (kill.evidence) {
      kill.evidence->end();
    }
    end(kill, KillVerdict::kUnkillable,
        fmt::format("still alive after SIGKILL: {}", state_text(kill.worker().pid)));
  } else {
    end(kill, KillVerdict::kSpared,
        fmt::format("the worker survived {}, and SIGKILL was not sent",
                    signal_name(kill.order.sent.back().signal)));
  }
}

void KillLadder::stop_all_targets() {
  std::vector<Kill*> incomplete;
  for (const auto& kill : stopping_) {
    incomplete.push_back(kill.get());
  }
  while (!incomplete.empty()) {
    // All targets are stopped before one of them is waited for, so that all have the whole time.
    std::erase_if(incomplete, [](Kill* kill) { return kill->targets.find_and_stop(); });
    const Instant begun = Instant::now();
    for (Kill* const kill : incomplete) {
      kill->targets.wait_until_stopped(begun + stop_budget_);
    }
    stop_budget_ -= std::min(stop_budget_, Instant::now() - begun);
  }
}

// Returns a kill that has sent its first signal, or is about to. `kill` has not.
KillLadder::Kill* KillLadder::other_kill_of_same_worker(const Kill& kill) const {
  const auto& all = kills_of_.at(&kill.worker());
  const auto found =
      std::ranges::find_if(all, [](const auto& other) { return other->stage >= Stage::kStopping; });
  return found == all.end() ? nullptr : found->get();
}

void KillLadder::find_releases(Kill& kill) {
  for (Expiry& expiry : kill.order.expiries) {
    if (expiry.released_at) {
      continue;
    }
    expiry.released_at = listener_.released_at(kill.worker(), expiry);
    if (!expiry.released_at) {
      continue;
    }
    if (kill.stage >= Stage::kRecorded || kill.order.is_continued) {
      ++released_late_[expiry.scope.name];
      std::string record = records_.released_late(kill.order.worker, expiry);
      files_.note_release(kill.order.id(), expiry, record);
      kill.order.record_number = log_.append(std::move(record));
    }
  }
}

void KillLadder::extend_grace(Duration missed) {
  for (const auto& kill : kills_) {
    if (kill->stage >= Stage::kSignalled && !kill->skips_grace) {
      kill->next_step_at = kill->next_step_at + missed;
    }
  }
}

void KillLadder::shorten_waits(Instant now) {
  has_short_waits_ = true;
  const Instant until = now + kShortEvidenceLimit;
  for (const auto& kill : kills_) {
    kill->skips_grace = true;
    if (kill->stage == Stage::kSignalled) {
      kill->next_step_at = now;
    } else if (kill->stage == Stage::kRecorded) {
      kill->gathering_until = std::min(kill->gathering_until, until);
      if (kill->evidence) {
        kill->evidence->end_by(until);
      }
    }
  }
}

void KillLadder::abandon() {
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
    if (!kill->worker_died && !kill->worker().is_alive()) {
      kill->worker_died = Instant::now();
    }
    end_with_current_outcome(*kill, kill->targets.alive());
  }
  kills_.clear();
}

void KillLadder::take_out(Kill& kill) {
  kill.stage = Stage::kEnded;
  const auto of_worker = kills_of_.find(&kill.worker());
  std::erase_if(of_worker->second, [&kill](const auto& each) { return each.get() == &kill; });
  if (of_worker->second.empty()) {
    kills_of_.erase(of_worker);
  } else {
    has_freed_one_ = true;
  }
}

void KillLadder::end(Kill& kill, KillVerdict verdict, std::string_view reason) {
  take_out(kill);
  Records::Outcome outcome;
  outcome.verdict = verdict;
  outcome.signals = kill.order.sent;
  outcome.reason = reason;
  outcome.cancelled = kill.cancelled;
  if (kill.last_evidence && verdict == KillVerdict::kUnkillable) {
    outcome.held_by = &*kill.last_evidence;
  }
  if (kill.worker_died) {
    outcome.dead_after = *kill.worker_died - kill.order.sent.front().when.mono;
  }
  end(kill.order, outcome);
}

void KillLadder::end(const KillOrder& order, Records::Outcome outcome) {
  outcome.list_bytes = log_.room_for_details();
  std::vector<std::string> records;
  for (const Expiry& expiry : order.expiries) {
    records.push_back(records_.killed(order.worker, expiry, outcome));
    outcome.cancelled = {};  // the first record alone lists them: there may be a thousand of both
  }
  files_.end(order.id(), outcome.verdict, records);
  const std::uint64_t number = log_.append(std::move(records));
  const Process& worker = *order.worker.process;
  files_.remove_after(order.expiries, worker.is_alive() ? &worker : nullptr, number);
  listener_.on_end(order, {outcome.verdict, number});
}

}  // namespace filetimer
