// SPDX-License-Identifier: MIT
#include "timer_server/recovery.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

constexpr std::string_view kExitedUnseen = "the worker ended while no server was running";
constexpr std::string_view kAnotherBoot = "the machine was restarted";
constexpr std::string_view kOverMeanwhile = "the scope had ended before the next server started";

// Returns the result, or ends the start for a failure that may end. A server that ran on would not
// watch the scopes of the worker, and would write over the file that has them.
template <class T>
Result<T> lasting(Result<T> result) {
  if (!result && is_for_now(result.error())) {
    throw std::runtime_error(result.error().message);
  }
  return result;
}

}  // namespace

std::size_t Recovery::run() {
  context_.pages.adopt(was_judged());
  context_.workers.for_each([&](const Worker& worker) {
    for (const auto& page : worker.pages) {
      adopted_scopes_ += page->open_count();
    }
  });
  const auto pipe_workers = context_.folder.pipe_workers();
  if (!pipe_workers) {
    throw std::runtime_error(pipe_workers.error().message);
  }
  for (const pid_t pid : *pipe_workers) {
    adopt_pipe_page(pid);
  }
  context_.workers.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      settle_judged_slots(worker, page);
    }
  });
  resume_kills();
  return adopted_scopes_;
}

// Returns the verdict that an earlier server recorded on this scope; null: none.
PastVerdict* Recovery::past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope) {
  const auto found = std::ranges::find_if(past_, [&](const PastVerdict& verdict) {
    return verdict.pid == pid && verdict.start_time == start_time &&
           verdict.expiry.scope.terms.acquired == scope.acquired &&
           verdict.expiry.scope.name == scope.name;
  });
  return found == past_.end() ? nullptr : &*found;
}

PageRegistry::WasJudged Recovery::was_judged() {
  return [this](pid_t pid, std::uint64_t start_time, const SlotReading& scope) {
    return past_verdict(pid, start_time, scope) != nullptr;
  };
}

// Adopts the scopes that an earlier server kept for a worker of the pipe.
void Recovery::adopt_pipe_page(pid_t pid) {
  const auto page =
      lasting(PipePage::adopt(context_.folder.server_pages(), pid, context_.policy.page_terms()));
  if (!page) {
    messages::warning("{}: left alone", page.error().message);
    return;
  }
  if (*page == nullptr) {
    return;
  }
  if (Worker* const worker = worker_of(**page, pid)) {
    worker->pipe = *page;
    worker->pages.push_back(*page);
    restore_scopes(*worker, **page);
  }
}

// Returns the worker of a pipe page, or null if the worker has exited or cannot be watched. Records
// the scopes of a worker that has exited, and removes the page.
Worker* Recovery::worker_of(PipePage& page, pid_t pid) {
  const PageClaims& claims = page.claims();
  auto process = lasting(open_process(pid));
  const bool is_alive = claims.boot == this_boot() && process &&
                        process->start_time == claims.start_time && process->uid == ::geteuid();
  if (!is_alive) {
    context_.pages.record_orphaned_scopes(claims, pid, page.adopted(),
                                          claims.boot == this_boot() ? kExitedUnseen : kAnotherBoot,
                                          was_judged());
    page.remove();
    return nullptr;
  }
  const auto worker = lasting(context_.registry.worker_for(std::move(*process)));
  if (!worker) {
    messages::error("the timers of pid {} are not watched: {}", pid, worker.error().message);
    return nullptr;
  }
  return *worker;
}

void Recovery::restore_scopes(Worker& worker, PipePage& page) {
  worker.left_on_pipe = Instant::now();  // an upper bound: the time is not saved
  for (const SlotReading& reading : page.adopted()) {
    const PastVerdict* const verdict =
        past_verdict(worker.process->pid, worker.process->start_time, reading);
    if (verdict != nullptr) {
      page.restore_verdict(reading.id, verdict->is_finished);
      continue;
    }
    ++adopted_scopes_;
  }
  context_.unsaved.note(worker);
}

void Recovery::settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page) {
  for (const WorkerPage::Judged& judged : page->judged_slots()) {
    PastVerdict* const record =
        past_verdict(worker.process->pid, worker.process->start_time, judged.reading);
    if (judged.released) {
      page->acknowledge_late_release(judged.slot);  // resume_kills() ends a recorded verdict
    } else if (record == nullptr) {
      page->reopen(judged.slot, judged.word);
    } else if (record->is_finished) {
      // The earlier server was killed between the record of the end and this call.
      page->finish(judged.slot, judged.word);
    } else {
      record->expiry.place = {page, judged.slot, judged.word};
    }
  }
}

void Recovery::resume_kills() {
  std::map<std::pair<pid_t, std::uint64_t>, std::vector<PastVerdict*>> unfinished;
  for (PastVerdict& verdict : past_) {
    if (!verdict.is_finished) {
      unfinished[{verdict.pid, verdict.start_time}].push_back(&verdict);
    } else if (verdict.expiry.scope.terms.is_idle) {
      restore_idleness(verdict);
    }
  }
  for (const auto& [process, verdicts] : unfinished) {
    resume_kill(process.first, process.second, verdicts);
  }
}

// A worker that was spared after its idle timeout is not judged again until it has been in a scope.
void Recovery::restore_idleness(const PastVerdict& verdict) {
  const Worker* const worker = context_.workers.find(verdict.pid);
  if (worker != nullptr && worker->process->start_time == verdict.start_time) {
    for (const auto& page : worker->pages) {
      page->restore_idle_verdict(verdict.expiry.scope.terms.deadline);
    }
  }
}

void Recovery::resume_kill(pid_t pid, std::uint64_t start_time,
                           const std::vector<PastVerdict*>& verdicts) {
  KillOrder order;
  order.is_recorded = true;
  order.has_evidence = std::ranges::any_of(verdicts, &PastVerdict::has_evidence);
  Worker* const worker = find_or_watch(pid, start_time);
  if (worker == nullptr) {
    record_exited(std::move(order), pid, start_time, verdicts);
    return;
  }
  order.worker = WorkerIdentity::of(*worker);
  order.python = context_.verdicts.python_dump_of(*worker);
  for (const PastVerdict* verdict : verdicts) {
    if (verdict->expiry.place.page) {
      order.expiries.push_back(verdict->expiry);
      continue;
    }
    // The scope was released, or the kill ended and only the record of its end was lost.
    Records::Outcome outcome;
    outcome.verdict = KillVerdict::kSpared;
    outcome.reason = kOverMeanwhile;
    context_.log.append(context_.records.killed(order.worker, verdict->expiry, outcome));
  }
  if (!order.expiries.empty()) {
    context_.verdicts.resume(*worker, std::move(order), Instant::now());
  }
}

// Returns null if the process has exited, or cannot be watched.
Worker* Recovery::find_or_watch(pid_t pid, std::uint64_t start_time) {
  Worker* worker = context_.workers.find(pid);
  if (worker == nullptr) {
    auto process = lasting(open_process(pid));
    if (process && process->start_time == start_time && process->uid == ::geteuid()) {
      worker = lasting(context_.registry.worker_for(std::move(*process))).value_or(nullptr);
    }
  }
  return worker != nullptr && worker->process->start_time == start_time ? worker : nullptr;
}

void Recovery::record_exited(KillOrder order, pid_t pid, std::uint64_t start_time,
                             const std::vector<PastVerdict*>& verdicts) {
  Process process;
  process.pid = pid;
  process.start_time = start_time;
  process.uid = ::geteuid();
  order.worker.process = std::make_shared<const Process>(std::move(process));
  order.worker.facts = std::make_shared<std::optional<WorkerFacts>>();
  Records::Outcome outcome;
  outcome.verdict = KillVerdict::kAlreadyGone;
  outcome.reason = kExitedUnseen;
  KillEnd end;
  end.verdict = outcome.verdict;
  for (const PastVerdict* verdict : verdicts) {
    order.expiries.push_back(verdict->expiry);
    end.record_number =
        context_.log.append(context_.records.killed(order.worker, verdict->expiry, outcome));
  }
  context_.verdicts.start_hook(order, end);
}

}  // namespace filetimer
