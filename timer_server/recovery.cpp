// SPDX-License-Identifier: MIT
#include "timer_server/recovery.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

constexpr std::string_view kExitedUnseen = "the worker ended while no server was running";

// Returns the result, or ends the start for a failure that may end. A server that ran on would not
// watch the scopes of the worker, and would write over the file that has them.
template <class T>
Result<T> lasting(Result<T> result) {
  if (!result && is_for_now(result.error())) {
    throw std::runtime_error(result.error().message);
  }
  return result;
}

bool is_of(const KillState& kill, pid_t pid, std::uint64_t start_time) {
  return kill.worker.process->pid == pid && kill.worker.process->start_time == start_time;
}

}  // namespace

std::size_t Recovery::adopt() {
  registry_.adopt(has_ended());
  const auto pipe_workers = core_.directory.pages().pipe_workers();
  if (!pipe_workers) {
    throw std::runtime_error(pipe_workers.error().message);
  }
  for (const pid_t pid : *pipe_workers) {
    adopt_pipe_page(pid);
  }
  core_.workers.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      settle_judged_slots(worker, page);
    }
  });
  return core_.workers.count_open_scopes();
}

// Returns the verdict that an earlier server has given on this scope, perhaps in another boot.
Recovery::PastVerdict Recovery::past_verdict(pid_t pid, std::uint64_t start_time,
                                             const SlotReading& scope) {
  for (KillState& kill : past_) {
    if (!is_of(kill, pid, start_time)) {
      continue;
    }
    for (Expiry& expiry : kill.expiries) {
      if (expiry.scope.acquired == scope.acquired && expiry.scope.name == scope.name) {
        return {&kill, &expiry};
      }
    }
  }
  return {};
}

// Returns whether the first signal of the kill has cancelled this other scope of its worker on the
// pipe: one that was open then and, unless SIGKILL was to follow, not due. A signal for the worker
// alone cancels none.
bool Recovery::is_cancelled(const KillState& past, const SlotReading& scope) const {
  const auto means = past.means();
  if (past.sent.empty() || !means || means->is_for_worker_alone) {
    return false;
  }
  const Instant signalled = past.sent.front().when.mono;
  const Instant due = due_time(scope, core_.policy.page_terms().max_timeout);
  return scope.acquired <= signalled &&
         (means->ends_in_sigkill() || (due > signalled && !scope.has(slot_flag::kWholeProcess)));
}

// If SIGKILL was to follow, the end of the worker after its signal has cancelled all scopes.
WatchRegistry::HasEnded Recovery::has_ended(bool is_on_pipe) {
  return [this, is_on_pipe](pid_t pid, std::uint64_t start_time, const SlotReading& scope) {
    if (past_verdict(pid, start_time, scope).kill != nullptr) {
      return true;
    }
    const auto kill = std::ranges::find_if(past_, [&](const KillState& past) {
      if (!past.is_of_this_boot || !is_of(past, pid, start_time) || past.sent.empty()) {
        return false;
      }
      const auto means = past.means();
      const bool ends_all = means && means->ends_in_sigkill() &&
                            past.verdict.value_or(KillVerdict::kDead) == KillVerdict::kDead;
      return ends_all || (is_on_pipe && is_cancelled(past, scope));
    });
    if (kill != past_.end() &&
        std::ranges::count(std::span(kill->cancelled).first(kill->cancelled_before), scope.name) ==
            0) {
      kill->cancelled.push_back(scope.name);
      core_.kill_files.note_cancelled(kill->id(), {&scope.name, 1});  // before its page is removed
    }
    return kill != past_.end();
  };
}

// Adopts the scopes that an earlier server kept for a worker of the pipe.
void Recovery::adopt_pipe_page(pid_t pid) {
  const auto page = lasting(
      PipePage::adopt(core_.directory.pages().server_pages(), pid, core_.policy.page_terms()));
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
    worker->left_on_pipe = Instant::now();  // an upper bound: the time is not saved
    for (const SlotReading& reading : (*page)->open_slots()) {
      const auto has_cancelled_it = [&](const KillState& past) {
        return past.verdict && is_of(past, pid, worker->process->start_time) &&
               is_cancelled(past, reading);
      };
      if (past_verdict(pid, worker->process->start_time, reading).kill != nullptr) {
        (*page)->restore_verdict(reading.id);
      } else if (std::ranges::any_of(past_, has_cancelled_it)) {
        (*page)->release(reading.id);  // a kill that has not ended cancels it again
      }
    }
    core_.workers.note_unsaved(*worker);
  }
}

// Returns the worker of a pipe page. Returns null, and removes the page, if the worker has exited
// or cannot be watched. Records the scopes of a worker that has exited.
Worker* Recovery::worker_of(PipePage& page, pid_t pid) {
  const PageClaims& claims = page.claims();
  auto process = lasting(open_process(pid));
  // It may have changed its user since it was admitted.
  const bool is_alive =
      claims.boot == this_boot() && process && process->start_time == claims.start_time;
  if (!is_alive) {
    registry_.record_orphaned_scopes(
        claims, pid, page.open_slots(),
        claims.boot == this_boot() ? kExitedUnseen : WatchRegistry::kAnotherBoot, has_ended(true));
    page.remove();
    return nullptr;
  }
  const auto worker = lasting(registry_.worker_for(std::move(*process)));
  if (!worker) {
    messages::error("the timers of pid {} are not watched: {}", pid, worker.error().message);
    page.remove();  // it would keep scopes whose releases this server does not read
    return nullptr;
  }
  return *worker;
}

void Recovery::settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page) {
  for (const WorkerPage::Judged& judged : page->judged_slots()) {
    const PastVerdict verdict =
        past_verdict(worker.process->pid, worker.process->start_time, judged.reading);
    if (judged.released) {
      page->acknowledge_late_release(judged.slot);  // resume_kill() ends the kill
    } else if (verdict.kill == nullptr || !verdict.kill->is_of_this_boot) {
      page->reopen(judged.slot, judged.word);
    } else if (verdict.kill->verdict) {
      page->finish(judged.slot, judged.word);
    } else {
      verdict.expiry->place = {page, judged.slot, judged.word};
    }
  }
}

void Recovery::resume_kill(KillState& past) {
  const Result<Worker*> found = find_or_watch(past);
  if (!found) {
    messages::error("the kill {} is left to the next server: {}", past.expiries.front().id,
                    found.error().message);
    return;
  }
  Worker* const worker = *found;
  KillState order = std::move(past);
  // The log may lack them. Readers count a record once that it has twice.
  for (std::string& record : order.is_recorded ? std::span<std::string>() : order.records) {
    // Evidence leaves room for verdicts and outcomes, as when it was collected.
    const bool is_detail = record.find(R"("event":"evidence")") != record.npos;
    order.record_number = is_detail ? core_.log->append_detail(std::move(record))
                                    : core_.log->append(std::move(record));
  }
  if (worker != nullptr) {
    order.worker.process = worker->process;
    // Those of the worker may come after its end, or never.
    if (!order.worker.facts->are_known) {
      order.worker.facts = worker->facts;
    }
  }
  if (order.verdict) {
    finish_kill(order, worker);
    return;
  }
  if (worker == nullptr && !has_targets(order)) {
    kills_.end(order,
               {.verdict = order.sent.empty() ? KillVerdict::kAlreadyGone : KillVerdict::kDead,
                .reason = order.is_of_this_boot ? kExitedUnseen : WatchRegistry::kAnotherBoot});
    return;
  }
  messages::warning("pid {} was to be killed by a server that has ended ({}): going on with it",
                    order.worker.process->pid, order.id());
  for (const Expiry& expiry : order.expiries) {
    if (worker != nullptr && expiry.scope.has(slot_flag::kIdle)) {
      worker->left_on_pipe = expiry.scope.deadline;  // a release since the verdict is in the file
    }
  }
  kills_.start(worker, std::move(order), Instant::now());
}

// Returns whether SIGKILL is to follow the last signal, and a process that got it is alive.
bool Recovery::has_targets(const KillState& order) const {
  const auto means = order.means();
  return order.is_of_this_boot && !order.sent.empty() && means && means->ends_in_sigkill() &&
         !alive_after(order.sent.back(), kills_.excluded()).empty();
}

// Finishes a kill whose outcome may be missing in the log. A worker that was spared after its idle
// timeout is not judged again until it has been in a scope.
void Recovery::finish_kill(const KillState& order, const Worker* worker) {
  for (const Expiry& expiry : order.expiries) {
    if (!expiry.scope.has(slot_flag::kIdle) || worker == nullptr) {
      continue;
    }
    for (const auto& page : worker->pages) {
      page->restore_idle_verdict(expiry.scope.deadline);
    }
  }
  core_.kill_files.remove_after(order.expiries, worker != nullptr ? worker->process.get() : nullptr,
                                order.record_number);
  if (order.record_number != 0 && !order.has_hook) {
    kills_.start_hook(order, *order.verdict, order.record_number);
  }
}

// Returns null if the process has exited. Fails if it cannot be watched.
Result<Worker*> Recovery::find_or_watch(const KillState& past) {
  if (!past.is_of_this_boot) {
    return nullptr;
  }
  const Process& wanted = *past.worker.process;
  Worker* worker = core_.workers.find(wanted.pid);
  if (worker == nullptr && !past.verdict) {
    auto process = lasting(open_process(wanted.pid));
    if (process && process->start_time == wanted.start_time) {
      const auto watched = lasting(registry_.worker_for(std::move(*process)));
      FILETIMER_TRY(watched);
      worker = *watched;
    }
  }
  return worker != nullptr && worker->process->start_time == wanted.start_time ? worker : nullptr;
}

}  // namespace filetimer
