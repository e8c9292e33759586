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
#include "timer_server/past_verdicts.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

constexpr std::string_view kEndedUnseen = "the worker ended while no server was there to see it";

// The verdict on the scope that had this deadline, or that was acquired then.
PastVerdict* find_verdict(std::vector<PastVerdict>& past, const Process& worker,
                          std::string_view scope, Instant deadline,
                          std::optional<Instant> acquired = {}) {
  const auto found = std::ranges::find_if(past, [&](const PastVerdict& verdict) {
    const ScopeTerms& terms = verdict.expiry.scope.terms;
    return verdict.pid == worker.pid && verdict.start_time == worker.start_time &&
           (acquired ? terms.acquired == *acquired : terms.deadline == deadline) &&
           verdict.expiry.scope.name == scope;
  });
  return found == past.end() ? nullptr : &*found;
}

}  // namespace

void Server::resume_kills(std::vector<PastVerdict>& past) {
  // Verdicts on pages find their records by worker and deadline.
  table_.for_each_worker([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      settle_judged_slots(worker, page, past);
    }
  });
  std::map<std::pair<pid_t, std::uint64_t>, std::vector<PastVerdict*>> unfinished;
  for (PastVerdict& verdict : past) {
    if (!verdict.is_finished) {
      unfinished[{verdict.pid, verdict.start_time}].push_back(&verdict);
    }
  }
  for (const auto& [who, verdicts] : unfinished) {
    resume_kill(who.first, who.second, verdicts);
  }
}

void Server::settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page,
                                 std::vector<PastVerdict>& past) {
  for (const WorkerPage::Judged& judged : page->judged_slots()) {
    PastVerdict* const record =
        judged.released
            ? find_verdict(past, *worker.process, judged.reading.name, {}, judged.reading.acquired)
            : find_verdict(past, *worker.process, judged.reading.name, {judged.word});
    if (judged.released) {
      if (record != nullptr && !record->is_finished) {
        record->expiry.released_at = Instant::now();
      }
      page->acknowledge_late_release(judged.slot);
    } else if (record == nullptr) {
      page->reopen(judged.slot, judged.word);
    } else if (record->is_finished) {
      page->finish(judged.slot, judged.word);
    } else {
      record->expiry.on_page = {page, judged.slot, judged.word};
    }
  }
}

// The timers that a server before this one kept for a worker of the pipe.
void Server::adopt_wire_page(pid_t pid, std::vector<PastVerdict>& past) {
  const std::string name = fmt::format("{}", pid);
  const std::string path = page_folder_.server_path(name);
  auto page = WorkerPage::open(path, name);
  if (!page) {
    messages::warning("'{}' is left alone: {}", path, page.error().message);
    return;
  }
  const PageClaims& claims = page->claims();
  auto process = open_process(pid);
  const bool is_alive = claims.boot == this_boot() && process &&
                        process->start_time == claims.start_time && process->uid == ::geteuid();
  Worker* worker = is_alive ? table_.find_worker(pid) : nullptr;
  if (is_alive && worker == nullptr) {
    if (const auto watched = watch(std::move(*process))) {
      worker = *watched;
    }
  }
  if (worker == nullptr) {
    put_away(*page, claims.boot == this_boot() ? kEndedUnseen : "the machine was restarted");
    ::unlink(path.c_str());
    return;
  }
  worker->wire_page = std::make_unique<WirePage>(path);
  worker->wire_page->take_over(slots_in_use(page->layout()));
  for (std::size_t i = 0; i < slots_in_use(page->layout()); ++i) {
    const auto slot = static_cast<WirePage::SlotNumber>(i);
    const std::int64_t word = page->layout().slot(i).deadline.load(std::memory_order_relaxed);
    const bool was_judged = slot_word::is_expired(word);
    const auto reading = page->read(i, word);
    // The page may not have been written any more after a verdict: the log knows.
    PastVerdict* const verdict =
        reading ? find_verdict(past, *worker->process, reading->name, {was_judged ? -word : word})
                : nullptr;
    if (!reading || (!slot_word::is_open(word) && !was_judged) ||
        (verdict != nullptr && verdict->is_finished)) {
      worker->wire_page->close(slot);
    } else if (verdict != nullptr) {
      verdict->expiry.on_page.slot = slot;
      verdict->expiry.scope_id = reading->id;
    } else {
      ScopeTerms terms = view_of(*reading).terms;
      if (table_.adopt(*worker, reading->id, reading->name, terms, slot)) {
        ++adopted_scopes_;
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
    order.expiries.push_back(verdict->expiry);
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
  for (const Expiry& expiry : order.expiries) {
    log_->append(records_.killed(order.worker, expiry, outcome));
  }
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
