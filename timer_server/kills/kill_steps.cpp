// The steps of a kill from its evidence to the deaths.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "common/scope_page.hpp"
#include "timer_server/kills/kills.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {
namespace {

// A verdict that is younger says that the worker runs the program that opened the scope.
constexpr Duration kFresh = std::chrono::milliseconds{1};
// When a step is tried again that has failed, as for want of memory.
constexpr Duration kStepAgain = std::chrono::milliseconds{100};

std::string state_text(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  const auto stat = read_stat(folder);
  const auto wchan = read_small_file(folder + "/wchan");
  return fmt::format("pid {} is in state {}{}", pid, stat ? stat->state : '?',
                     wchan && *wchan != "0" ? " in " + *wchan : std::string{});
}

// Returns whether a worker whose idle timeout has expired is in a scope, or has left one since.
bool has_worked_since(Core& core, const Process& process, Instant since) {
  const auto has_work_on = [since](const auto& page) {
    const WorkerPage::Activity activity = page->activity();
    return activity.is_inside || activity.last_left > since;
  };
  const Worker* const worker = core.workers.find(process);
  return worker != nullptr && (std::max(worker->left_on_pipe, worker->unwatched_until) > since ||
                               std::ranges::any_of(worker->pages, has_work_on));
}

// Returns when the scope was released, or renewed, since its verdict.
std::optional<Instant> released_at(Core& core, const Process& process, const Expiry& expiry) {
  if (expiry.scope.has(slot_flag::kIdle) &&
      has_worked_since(core, process, expiry.scope.deadline)) {
    return Instant::now();
  }
  const PageVerdict& place = expiry.place;
  if (!place.page) {
    return Instant::now();  // the scope was over when an earlier server's kill was continued
  }
  return place.page->released_late_at({place.slot, place.word, expiry.scope.deadline});
}

}  // namespace

// Takes every kill as far as it can go now. Returns when the next step is due.
Instant Kills::take_steps(Instant now, Instant woke) {
  stop_budget_ = kStopLimit;
  Instant next = Instant::never();
  do {
    next = Instant::never();
    for (const auto& kill : kills_) {
      const bool is_done = messages::guard([&] {  // the other kills go on
        while (step(*kill, now, woke)) {
        }
      });
      if (!is_done) {
        next = std::min(next, now + kStepAgain);
      } else if (kill->stage != Stage::kEnded) {
        next = std::min(next, kill->next_step_at);
      }
    }
    std::erase_if(
        kills_, [](const auto& kill) { return kill->stage == Stage::kEnded && !kill->is_stopped; });
  } while (signal_stopped());
  return next;
}

bool Kills::step(Kill& kill, Instant now, Instant woke) {
  switch (kill.stage) {
    case Stage::kRecorded:
      return begin_first_signal(kill, now);
    case Stage::kSignalled:
    case Stage::kKilled:
      return wait_for_death(kill, woke);
    case Stage::kLastEvidence:
      return finish_unkillable(kill);
    case Stage::kFacts:
    case Stage::kStopping:
    case Stage::kEnded:
      break;
  }
  return false;
}

// Without evidence, the signal of a worker without children waits for these system calls only: a
// poll of its pidfd, because the worker may have ended since its verdict; its state and SIGSTOP, so
// that it starts no process; one look at its children.
bool Kills::begin_first_signal(Kill& kill, Instant now) {
  find_releases(kill);
  const auto means = kill.order.means();
  if (!kill.hurry_from.is_never() && (policy_.dry_run || !means || !means->ends_in_sigkill())) {
    limit_evidence(kill, kill.hurry_from + kShortWait);
  }
  if (!is_ready_for_signal(kill, now)) {
    return false;
  }
  if (policy_.dry_run || !means) {
    end_without_signal(kill);
    return true;
  }
  if (!kill.worker().is_alive()) {
    end(kill, KillVerdict::kAlreadyGone, {});
    return true;
  }
  if (has_started_another_program(kill)) {
    end(kill, KillVerdict::kSpared, WatchRegistry::kStartedAnother);
    return true;
  }
  if (means->is_for_worker_alone) {
    kill.targets.spare_others();  // the scopes that wanted another signal were released
  }
  kill.means = *means;
  begin_signal(kill);
  return true;
}

// Returns whether the worker runs another program than at the verdict, by now that the signal has
// waited for evidence.
bool Kills::has_started_another_program(const Kill& kill) {
  const std::vector<Expiry>& expiries = kill.order.expiries;
  return Instant::now() - expiries.front().judged > kFresh &&
         std::ranges::any_of(expiries, [&](const Expiry& expiry) {
           return expiry.place.page && runs_another_program(kill.worker(), *expiry.place.page);
         });
}

void Kills::find_releases(Kill& kill) {
  for (Expiry& expiry : kill.order.expiries) {
    if (expiry.released_at) {
      continue;
    }
    expiry.released_at = released_at(core_, kill.worker(), expiry);
    // Of a scope that ended while no server ran it is not known when, or whether it was released.
    if (!expiry.released_at || !expiry.place.page) {
      continue;
    }
    ++core_.counters.released_late[expiry.scope.name];
    std::string record = core_.records.released_late(kill.order.worker, expiry);
    core_.kill_files.note_release(kill.order.id(), expiry, record);
    kill.order.record_number = core_.log->append(std::move(record));
  }
}

// Looks for releases again just before the first signal: a worker that slept was not stopped, and
// may have run while other targets were waited for.
void Kills::confirm_first_signal(Kill& kill) {
  messages::guard([&] { find_releases(kill); });
  if (kill.order.means() != kill.means) {
    kill.stage = Stage::kRecorded;  // the next step spares the worker, or chooses another signal
    return;
  }
  messages::guard([&] { note_means(kill, kill.means); });
}

// Called before the first signal is sent, or when a kill is continued that an earlier server has
// begun with a signal. Ends the worker's other scopes of the pipe: until then a release can cancel
// the kill. Those on a page of its own end with the worker. If SIGKILL is not to follow, the scopes
// that are due, or were opened after that signal, stay open, and are judged when the kill has
// ended.
void Kills::note_means(Kill& kill, const KillState::Means& means) {
  kill.means = means;
  Worker* const worker = core_.workers.find(kill.worker());
  if (policy_.dry_run || means.is_for_worker_alone || worker == nullptr) {
    return;  // no SIGKILL follows the signal of an earlier server, or the worker acts on it
  }
  const bool is_final = means.ends_in_sigkill();
  worker->kill = is_final ? Worker::Kill::kDying : Worker::Kill::kBegun;
  if (worker->pipe) {
    const std::vector<SentSignal>& sent = kill.order.sent;
    const Instant opened_by = is_final || sent.empty() ? Instant::never() : sent.front().when.mono;
    // The next server asks long after the signal.
    const Instant due_by = is_final ? Instant{} : std::min(Instant::now(), opened_by);
    std::vector<std::string>& cancelled = kill.order.cancelled;
    cancelled.reserve(cancelled.size() + worker->pipe->watched_count());  // all names, or none
    std::ranges::move(worker->pipe->cancel_all(due_by, opened_by), std::back_inserter(cancelled));
  }
}

// Stops the targets for signal_stopped().
void Kills::begin_signal(Kill& kill) {
  kill.stage = Stage::kStopping;
  kill.is_stopped = true;
  const bool may_go_on =
      kill.order.sent.empty() && kill.means.signal != SIGKILL && kill.means.grace;
  kill.targets.begin_stop(may_go_on ? KillTargets::Stop::kForking : KillTargets::Stop::kAll);
}

void Kills::stop_all_targets(const std::vector<Kill*>& kills) {
  std::vector<Kill*> incomplete = kills;
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

// Sends the signals of the kills whose targets are being stopped. Returns whether there are any. No
// signal is sent before all targets of all these kills have stopped: the kills wait together, and
// processes that end do not compete with looks at others for the processors. No target is resumed
// before all signals are sent: it may be a target of another of these kills.
bool Kills::signal_stopped() {
  std::vector<Kill*> stopping;
  for (const auto& kill : kills_) {
    if (kill->is_stopped) {
      stopping.push_back(kill.get());
    }
  }
  stop_all_targets(stopping);
  for (Kill* const kill : stopping) {
    if (kill->stage == Stage::kStopping && kill->order.sent.empty()) {
      confirm_first_signal(*kill);
    }
    if (kill->stage == Stage::kStopping) {
      incidents_.want_record();
      std::vector<SentSignal>& sent = kill->order.sent;
      sent.push_back(kill->targets.send(sent.empty() ? kill->means.signal : SIGKILL));
      wait_after_signal(*kill);
    }
  }
  Sessions sessions;
  for (Kill* const kill : stopping) {
    try {
      if (kill->stage == Stage::kSignalled || kill->stage == Stage::kKilled) {
        kill->targets.send_to_orphans(kill->order.sent.back(), sessions);
      }
    } catch (const std::exception& error) {  // the targets must not stay stopped
      messages::warning("the orphans of pid {}: {}", kill->worker().pid, error.what());
    }
    kill->targets.resume();
    kill->is_stopped = false;
    kill->targets.watch_ends(core_.loop, [&news = kill->has_news] { news = true; });
  }
  for (Kill* const kill : stopping) {
    if (kill->noted < kill->order.sent.size()) {
      core_.kill_files.note_signal(kill->order.id(), kill->order.sent.back());
      kill->noted = kill->order.sent.size();
    }
  }
  return !stopping.empty();
}

void Kills::wait_after_signal(Kill& kill) {
  const SentSignal& sent = kill.order.sent.back();
  const bool is_last = sent.signal == SIGKILL || !kill.means.grace;
  kill.stage = is_last ? Stage::kKilled : Stage::kSignalled;
  kill.next_step_at =
      is_last ? end_of_wait(kill)
              : sent.when.mono + (has_short_waits_ ? Duration::zero() : *kill.means.grace);
}

// Returns how long the deaths are waited for after the last signal.
Instant Kills::end_of_wait(const Kill& kill) const {
  const SentSignal& last = kill.order.sent.back();
  const Instant end = last.when.mono + policy_.kill_wait;
  if (last.signal == SIGKILL || kill.hurry_from.is_never()) {
    return end;
  }
  return std::min(end, std::max(last.when.mono, kill.hurry_from) + kShortWait);
}

// Takes note of the death of a worker that was signalled, and of the scopes that it ends if its
// pages are still there.
void Kills::note_death(Kill& kill) {
  if (kill.worker_died || kill.order.sent.empty() || kill.worker().is_alive()) {
    return;
  }
  std::vector<std::string>& cancelled = kill.order.cancelled;
  const Worker* const worker = core_.workers.find(kill.worker());
  if (worker != nullptr && worker->is_dying()) {
    std::vector<SlotReading> scopes = core_.policy.open_scopes_of(*worker, SIZE_MAX);
    cancelled.reserve(cancelled.size() + scopes.size());  // all of them, or none
    for (SlotReading& scope : scopes) {
      if (slot_word::is_open(scope.word)) {
        cancelled.push_back(std::move(scope.name));
      }
    }
  }
  kill.worker_died = Instant::now();  // not before: for want of memory this is called again
  if (worker != nullptr && !cancelled.empty()) {
    core_.kill_files.note_cancelled(kill.order.id(), cancelled);
  }
}

bool Kills::wait_for_death(Kill& kill, Instant now) {
  // Without a death and before the next step there is nothing to do. This saves a look at every
  // pidfd.
  if (!kill.has_news && now < kill.next_step_at) {
    return false;
  }
  note_death(kill);  // the only look at the worker: its death is noted before the kill ends
  // Without a signal: this step has found all of them ended before, and had no memory for the end.
  const bool has_worker_ended = kill.worker_died || kill.order.sent.empty();
  if (has_worker_ended && kill.targets.others_alive().empty()) {
    // All of them may have exited while they were being stopped.
    std::erase_if(kill.order.sent, [](const SentSignal& sent) { return sent.pids.empty(); });
    const bool was_signalled = !kill.order.sent.empty();
    kill.worker_died = was_signalled ? kill.worker_died : std::nullopt;
    end(kill, was_signalled ? KillVerdict::kDead : KillVerdict::kAlreadyGone, {});
    return true;
  }
  kill.has_news = false;  // no allocation has failed
  if (now < kill.next_step_at) {
    return false;
  }
  if (kill.stage == Stage::kSignalled && !policy_.dry_run) {
    begin_signal(kill);
    return true;
  }
  if (kill.worker_died || kill.order.sent.back().signal != SIGKILL) {
    end_with_current_outcome(kill);
  } else {
    start_last_evidence(kill, now);
  }
  return true;
}

void Kills::start_last_evidence(Kill& kill, Instant now) {
  kill.stage = Stage::kLastEvidence;
  kill.next_step_at = Instant::never();
  kill.evidence = core_.desk.collect({.worker = kill.order.worker.process,
                                      .level = EvidenceLevel::kProc,
                                      .until = now + policy_.evidence_timeout},
                                     now, [&kill](Evidence evidence, bool) {
                                       kill.last_evidence = std::move(evidence);
                                       kill.evidence.reset();
                                     });
}

bool Kills::finish_unkillable(Kill& kill) {
  note_death(kill);
  if (!kill.worker_died && kill.evidence) {
    return false;
  }
  end_with_current_outcome(kill);
  return true;
}

void Kills::end_without_signal(Kill& kill) {
  const auto is_over = [](const Expiry& expiry) { return expiry.place.page == nullptr; };
  const auto was_released = [](const Expiry& expiry) { return expiry.released_at.has_value(); };
  const std::vector<Expiry>& expiries = kill.order.expiries;
  end(kill, KillVerdict::kSpared,
      policy_.dry_run ? "dry run"
      : std::ranges::all_of(expiries, is_over)
          ? "the scope had ended before the next server started"
      : std::ranges::any_of(expiries, was_released) ? "released late, but before the signal"
                                                    : "signal 0");
}

void Kills::end_with_current_outcome(Kill& kill) {
  const SentSignal& last = kill.order.sent.back();
  // Not if a security module, or a filter of system calls, forbids the server to send it.
  const bool was_sent = std::ranges::count(last.pids, kill.worker().pid) > 0;
  if (kill.worker_died) {
    const std::vector<pid_t> alive = kill.targets.others_alive();
    end(kill, KillVerdict::kDead,
        alive.empty()
            ? std::string{}
            : fmt::format("kill targets that are still alive: {}", fmt::join(alive, ", ")));
  } else if (last.signal == SIGKILL) {
    if (kill.evidence) {
      kill.evidence->end();
    }
    end(kill, KillVerdict::kUnkillable,
        fmt::format("{}: {}",
                    was_sent ? "still alive after SIGKILL" : "the server may not send it SIGKILL",
                    state_text(kill.worker().pid)));
  } else {
    end(kill, KillVerdict::kSpared,
        fmt::format("{} {}, and {}",
                    was_sent ? "the worker survived" : "the server may not send it",
                    signal_name(last.signal),
                    kill.hurry_from.is_never() ? "SIGKILL was not sent" : "another scope expired"));
  }
}

}  // namespace filetimer
