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
  workers_.for_each([&](Worker& worker) {
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
  const Worker* const worker = workers_.find(verdict.pid);
  if (worker != nullptr && worker->process->start_time == verdict.start_time) {
    for (const auto& page : worker->pages) {
      page->restore_idle_verdict(verdict.expiry.scope.terms.deadline);
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
      record->expiry.place = {page, judged.slot, judged.word};
    }
  }
}

// Adopts the scopes that an earlier server kept for a worker of the pipe.
void Server::adopt_pipe_page(pid_t pid) {
  const std::string path = directory_.pages().server_path(fmt::format("{}", pid));
  const auto page = PipePage::adopt(path, page_terms_);
  if (!page) {
    messages::warning("{}: left alone", page.error().message);
    return;
  }
  const PageClaims& claims = (*page)->claims();
  auto process = open_process(pid);
  const bool is_alive = claims.boot == this_boot() && process &&
                        process->start_time == claims.start_time && process->uid == ::geteuid();
  if (!is_alive) {
    put_away(claims, pid, (*page)->adopted(),
             claims.boot == this_boot() ? kEndedUnseen : kAnotherBoot);
    (*page)->remove();
    return;
  }
  Worker* worker = workers_.find(pid);
  if (worker == nullptr) {
    const auto watched = watch(std::move(*process));
    if (!watched) {
      messages::error("the timers of pid {} are not watched: {}", pid, watched.error().message);
      return;
    }
    worker = *watched;
  }
  worker->pipe = *page;
  worker->pages.push_back(*page);
  worker->left_on_pipe = Instant::now();  // or before: no server has kept when
  for (const SlotReading& reading : (*page)->adopted()) {
    if (const PastVerdict* const verdict = past_verdict(pid, claims.start_time, reading)) {
      (*page)->restore_verdict(reading.id, verdict->is_finished);
    } else if (++adopted_scopes_; (reading.flags & slot_flag::kIdle) != 0) {
      worker->set_idle_since(reading.acquired);
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
  Worker* worker = workers_.find(pid);
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
      if (verdict->expiry.place.page) {
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

// Scopes of the pipe that have changed are written before anything is judged.
void Server::keep(const Worker& worker) {
  if (worker.pipe && worker.pipe->needs_save()) {
    unsaved_.insert(worker.process->pid);
  }
}

void Server::save_pages() {
  for (const pid_t pid : unsaved_) {
    Worker* const worker = workers_.find(pid);
    if (worker == nullptr || !worker->pipe) {
      continue;
    }
    const Status saved = worker->pipe->save(*worker->process, *worker->facts);
    if (!saved && saved.error().message != save_trouble_) {
      save_trouble_ = saved.error().message;
      messages::error("{}; its timers are watched, but would be lost with this server",
                      save_trouble_);
    }
  }
  unsaved_.clear();
}

}  // namespace filetimer
