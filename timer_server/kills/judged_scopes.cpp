// SPDX-License-Identifier: MIT
#include "timer_server/kills/judged_scopes.hpp"

#include <signal.h>

#include "common/due.hpp"
#include "common/scope_page.hpp"

namespace filetimer {
namespace {

// Returns whether a worker whose idle timeout has expired is in a scope, or has left one since.
bool has_worked_since(Core& core, const Process& process, Instant since) {
  const Worker* const worker = core.workers.find(process);
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

}  // namespace

// A judged scope stays in its slot until the kill has ended, so its name and times can be read.
std::optional<Expiry> expiry_of(Core& core, const DeadlineScan::DueScope& due) {
  const PageVerdict& place = due.place;
  auto reading = place.page->read(place.slot, slot_word::expired(place.word));
  if (!reading) {
    reading = place.page->read(place.slot, slot_word::kReleasedLate);
  }
  if (!reading) {
    return std::nullopt;
  }
  Expiry expiry;
  expiry.scope = core.policy.view_of(*reading);
  ScopeTerms& terms = expiry.scope.terms;
  terms.deadline = due.deadline;
  if (grace_before_due(terms.signal_first, terms.signal, terms.grace.value_or(Grace{})) >
      Duration::zero()) {
    terms.signal = SIGKILL;  // the first signal was sent when the timeout had passed
  }
  expiry.place = place;
  return expiry;
}

std::optional<Instant> released_at(Core& core, const Process& process, const Expiry& expiry) {
  if (expiry.scope.terms.is_idle && has_worked_since(core, process, expiry.scope.terms.deadline)) {
    return Instant::now();
  }
  const PageVerdict& place = expiry.place;
  if (!place.page) {
    return Instant::now();  // the scope was over when an earlier server's kill was continued
  }
  return place.page->released_late_at(place.slot, place.word);
}

std::vector<std::string> cancel_scopes(Core& core, const Process& process, bool is_final) {
  std::vector<std::string> cancelled;
  Worker* const worker = core.workers.find(process);
  if (worker == nullptr) {
    return cancelled;
  }
  if (worker->pipe) {
    cancelled = worker->pipe->cancel_all(is_final ? Instant{} : Instant::now());
  }
  for (const auto& page : worker->pages) {
    for (const SlotReading& reading : page->open_slots()) {
      if (is_final && slot_word::is_open(reading.word)) {
        cancelled.push_back(reading.name);
      }
    }
  }
  worker->kill = is_final ? Worker::Kill::kDying : Worker::Kill::kBegun;
  return cancelled;
}

bool finish_scopes(Core& core, Worker& worker, std::span<const Expiry> expiries) {
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
  core.workers.note_unsaved(worker);
  return !worker.pages.empty();
}

}  // namespace filetimer
