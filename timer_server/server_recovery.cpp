// The server's beginning after another one's end: kills that the other had begun are finished,
// verdicts that it did not live to record are given anew. Nothing is judged twice, and nothing that
// was judged is forgotten, at whatever moment the other was killed:
//   before the verdict    the scope is open on its page: judged as ever
//   verdict, no record    the page says so and the log does not: the scope is opened again, and
//                         judged at once
//   record, no end        the kill goes on under the id that it has
//   end                   the page may not know yet: it is told
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/scope_page.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

constexpr std::string_view kEndedUnseen = "the worker ended while no server was there to see it";
constexpr std::string_view kAnotherBoot = "the machine was restarted";
constexpr std::string_view kOverMeanwhile = "the scope was over when the next server came";

}  // namespace

// The verdict that a server before this one recorded on just this scope.
PastVerdict* Server::past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope) {
  const auto found = std::ranges::find_if(past_, [&](const PastVerdict& verdict) {
    return verdict.pid == pid && verdict.start_time == start_time &&
           verdict.expiry.scope.terms.acquired == scope.acquired &&
           verdict.expiry.scope.name == scope.name;
  });
  return found == past_.end() ? nullptr : &*found;
}

void Server::resume_kills() {
  table_.for_each_worker([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      settle_judged_slots(worker, page);
    }
  });
  std::map<std::pair<pid_t, std::uint64_t>, std::vector<PastVerdict*>> unfinished;
  for (PastVerdict& verdict : past_) {
    if (!verdict.is_finished) {
      unfinished[{verdict.pid, verdict.start_time}].push_back(&verdict);
    } else if (verdict.expiry.scope.terms.is_idle) {
      recall_idleness(verdict);
    }
  }
  for (const auto& [who, verdicts] : unfinished) {
    resume_kill(who.first, who.second, verdicts);
  }
}

// It lives on, was spared, and is idle for the same time still, or so its page will say.
void Server::recall_idleness(const PastVerdict& verdict) {
  const Worker* const worker = table_.find_worker(verdict.pid);
  if (worker != nullptr && worker->process->start_time == verdict.start_time) {
    for (const auto& page : worker->pages) {
      page->recall_idle(verdict.expiry.scope.terms.deadline);
    }
  }
}

void Server::settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page) {
  for (const WorkerPage::Judged& judged : page->judged_slots()) {
    PastVerdict* const record =
        past_verdict(worker.process->pid, worker.process->start_time, judged.reading);
    if (judged.released) {
      page->acknowledge_late_release(judged.slot);  // the record, if there is one, has no slot then
    } else if (record == nullptr) {
      page->reopen(judged.slot, judged.word);
    } else if (record->is_finished) {
      // The server before was killed in the microseconds between the record of the end and this.
      page->finish(judged.slot, judged.word);
    } else {
      record->expiry.on_page = {page, judged.slot, judged.word};
    }
  }
}

// The timers that a server before this one kept for a worker of the pipe.
void Server::adopt_wire_page(pid_t pid) {
  const std::string path = directory_.pages().server_path(fmt::format("{}", pid));
  auto kept = WirePage::read(path);
  if (!kept) {
    messages::warning("{}: left alone", kept.error().message);
    return;
  }
  const PageClaims& claims = kept->claims;
  auto process = open_process(pid);
  const bool is_alive = claims.boot == this_boot() && process &&
                        process->start_time == claims.start_time && process->uid == ::geteuid();
  if (!is_alive) {
    std::vector<SlotReading> scopes;
    for (const auto& [slot, reading] : kept->scopes) {
      scopes.push_back(reading);
    }
    put_away(claims, pid, scopes, claims.boot == this_boot() ? kEndedUnseen : kAnotherBoot);
    ::unlink(path.c_str());
    return;
  }
  Worker* worker = table_.find_worker(pid);
  if (worker == nullptr) {
    const auto watched = watch(std::move(*process));
    if (!watched) {
      messages::error("the timers of pid {} are not watched: {}", pid, watched.error().message);
      return;
    }
    worker = *watched;
  }
  worker->wire_page = std::make_unique<WirePage>(path);
  worker->wire_page->take_over(*kept);
  worker->left_on_pipe = Instant::now();  // or before; when, nobody has kept
  for (const auto& [slot, reading] : kept->scopes) {
    // The page may not have been written any more after a verdict: the log knows.
    PastVerdict* const verdict = past_verdict(pid, claims.start_time, reading);
    const bool is_open = slot_word::is_open(reading.word) || slot_word::is_expired(reading.word);
    if (!is_open || (verdict != nullptr && verdict->is_finished)) {
      worker->wire_page->close(slot);
    } else if (verdict != nullptr) {
      verdict->expiry.on_page.slot = slot;
      verdict->expiry.scope_id = reading.id;
    } else if (const ScopeTerms terms = view_of(reading).terms;
               table_.adopt(*worker, reading.id, reading.name, terms, slot)) {
      ++adopted_scopes_;
      if (terms.is_idle) {
        worker->set_idle_since(terms.acquired);
      }
    }
  }
  keep(*worker);
}

void Server::resume_kill(pid_t pid, std::uint64_t start_time,
                         const std::vector<PastVerdict*>& verdicts) {
  KillOrder order;
  order.is_recorded = true;
  order.incident = std::make_shared<Incident>();
  order.incident->id = verdicts.front()->expiry.incident;
  order.incident->recorded = true;
  for (const PastVerdict* verdict : verdicts) {
    order.has_evidence = order.has_evidence || verdict->has_evidence;
  }
  Worker* worker = table_.find_worker(pid);
  if (worker == nullptr) {
    auto process = open_process(pid);
    if (process && process->start_time == start_time && process->uid == ::geteuid()) {
      if (const auto watched = watch(std::move(*process))) {
        worker = *watched;
      }
    }
  }
  if (worker != nullptr && worker->process->start_time == start_time) {
    order.worker = WorkerIdentity::of(*worker);
    order.python = python_dump_of(*worker);
    for (const PastVerdict* verdict : verdicts) {
      const PageVerdict& place = verdict->expiry.on_page;
      if (place.page || place.slot != WirePage::kNone) {
        order.expiries.push_back(verdict->expiry);
        continue;
      }
      // It was released, or the kill ended, and only the record of that was lost.
      Records::Outcome over;
      over.verdict = KillVerdict::kSpared;
      over.reason = kOverMeanwhile;
      log_->append(records_.killed(order.worker, verdict->expiry, over));
    }
    if (order.expiries.empty()) {
      return;
    }
    messages::warning("pid {} was to be killed by a server that has ended ({}): going on with it",
                      pid, order.expiries.front().id);
    ladder_.start(std::move(order), Instant::now());
    return;
  }
  Process gone;
  gone.pid = pid;
  gone.start_time = start_time;
  gone.uid = ::geteuid();
  order.worker.process = std::make_shared<const Process>(std::move(gone));
  order.worker.facts = std::make_shared<std::optional<WorkerFacts>>();
  Records::Outcome outcome;
  outcome.verdict = KillVerdict::kAlreadyGone;
  outcome.reason = kEndedUnseen;
  KillEnd end;
  end.verdict = outcome.verdict;
  for (const PastVerdict* verdict : verdicts) {
    order.expiries.push_back(verdict->expiry);
    end.record_number = log_->append(records_.killed(order.worker, verdict->expiry, outcome));
  }
  run_hook(order, end);
}

// The timers of this worker have changed: they are written before anything is judged.
void Server::keep(const Worker& worker) {
  if (worker.wire_page && worker.wire_page->has_changed()) {
    unsaved_.insert(worker.process->pid);
  }
}

void Server::save_pages() {
  for (const pid_t pid : unsaved_) {
    Worker* const worker = table_.find_worker(pid);
    if (worker == nullptr || !worker->wire_page) {
      continue;
    }
    const Status saved = worker->wire_page->save(*worker->process, *worker->facts);
    if (!saved && saved.error().message != save_trouble_) {
      save_trouble_ = saved.error().message;
      messages::error("{}; its timers are watched, but would be lost with this server",
                      save_trouble_);
    }
  }
  unsaved_.clear();
}

}  // namespace filetimer
