// When a deadline that has passed says nothing of its worker: the worker was stopped, frozen or
// traced, or the server itself, or the whole machine, was not there. False kills are worse than
// late ones, so such scopes get time, once, and a record says so.
//
// The grain: a worker that is halted is noticed when one of its deadlines comes, and at sweeps; one
// that was halted and went on between two of them is not. It is looked at again every
// kLookAgain.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "common/duration_text.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

// How often a worker that is halted is looked at; that long it may go on before its scopes' time
// begins anew.
constexpr Duration kLookAgain = std::chrono::milliseconds{500};

// So many are looked at at once, for whom no thread is woken.
constexpr std::size_t kFewWorkers = 16;

}  // namespace

// ---------------------------------------------------------------------------------------------
// The worker.

// True: the worker could not have met the deadline of `scope`, and gets time when it goes on.
bool Server::puts_off(Worker& worker, const ScopeView& scope) {
  if (settings_.stopped == Settings::Stopped::kKill) {
    return false;
  }
  const auto known = halted_.find(worker.process->pid);
  const std::string why = why_halted(worker.process->pid, is_own_helper);
  if (why.empty()) {
    if (known == halted_.end()) {
      return false;
    }
    goes_on(worker, known->second);
    halted_.erase(known);
    return true;
  }
  Halt& halt = known != halted_.end() ? known->second : note_halt(worker, why);
  if (!halt.is_recorded) {
    halt.is_recorded = true;
    log_->append(records_.deferred(WorkerIdentity::of(worker), scope, Instant::now(), halt.why));
    messages::info("pid {} ({}) is put off in '{}': {}", worker.process->pid, worker.process->comm,
                   scope.name, halt.why);
  }
  return true;
}

bool Server::puts_off_pipe(Worker& worker, const std::vector<const DueScope*>& due) {
  // A verdict on a page is given already: it was running a moment ago.
  const bool is_judged =
      std::ranges::any_of(due, [](const DueScope* scope) { return scope->scope == nullptr; });
  if (is_judged || !puts_off(worker, ScopeView::of(*due.front()->scope))) {
    return false;
  }
  if (halted_.contains(worker.process->pid)) {
    // Until it goes on. Postponing them by kLookAgain at a time would do the same with more work.
    for (const DueScope* scope : due) {
      table_.postpone(*scope->scope, Instant::never());
    }
  }
  return true;
}

bool Server::puts_off_page(Worker& worker, WorkerPage& page,
                           const std::vector<WorkerPage::Due>& due) {
  const auto reading = page.read(due.front().slot, due.front().word);
  if (!reading || !puts_off(worker, view_of(*reading))) {
    return false;
  }
  if (halted_.contains(worker.process->pid)) {
    for (const WorkerPage::Due& scope : due) {
      page.postpone(scope.slot, scope.word, Instant::never());
    }
  }
  return true;
}

Server::Halt& Server::note_halt(const Worker& worker, const std::string& why) {
  const Instant now = Instant::now();
  next_halt_look_ = std::min(next_halt_look_, now + kLookAgain);
  return halted_[worker.process->pid] = Halt{worker.process, why, now, false};
}

// Its scopes have their full time from now on.
void Server::goes_on(Worker& worker, const Halt& halt) {
  const Instant now = Instant::now();
  const auto renewed = [now](Instant deadline, Duration timeout) {
    return timeout == kForever
               ? deadline
               : std::max(now + timeout, deadline.is_never() ? Instant{} : deadline);
  };
  for (Scope& scope : worker.by_age) {
    table_.postpone(scope, renewed(scope.terms.deadline, scope.terms.timeout));
  }
  keep(worker);
  for (const auto& page : worker.pages) {
    page->postpone_all(settings_.max_timeout.value_or(kForever), [&](const auto& open) {
      return WorkerPage::Extension{renewed(open.deadline, open.timeout), open.is_extended};
    });
  }
  scan_wanted_ = scan_wanted_ || !worker.pages.empty();
  messages::info("pid {} ({}) goes on after {}: its scopes have their full time again",
                 worker.process->pid, worker.process->comm, duration_for_reading(now - halt.since));
}

void Server::look_at_halted(Instant now) {
  next_halt_look_ = Instant::never();
  for (auto entry = halted_.begin(); entry != halted_.end();) {
    Worker* const worker = table_.find_worker(entry->first);
    const bool is_it = worker != nullptr && worker->process == entry->second.process;
    const bool is_halted = is_it && !why_halted(entry->first, is_own_helper).empty();
    if (is_it && !is_halted) {
      goes_on(*worker, entry->second);
    }
    entry = is_halted ? std::next(entry) : halted_.erase(entry);
  }
  if (!halted_.empty()) {
    next_halt_look_ = now + kLookAgain;
  }
}

// At sweeps; of many workers beside the loop, since each takes some 40 us.
void Server::look_for_halted() {
  if (settings_.stopped == Settings::Stopped::kKill) {
    return;
  }
  std::vector<std::weak_ptr<const Process>> watched;
  table_.for_each_worker([&](const Worker& worker) {
    if (!worker.dying && (!worker.scopes.empty() || !worker.pages.empty())) {
      watched.push_back(worker.process);
    }
  });
  if (watched.empty()) {
    return;
  }
  const bool are_few = watched.size() <= kFewWorkers;
  auto look = [this, watched = std::move(watched)]() -> SideThreads::Delivery {
    std::vector<std::pair<std::weak_ptr<const Process>, std::string>> halted;
    for (const auto& weak : watched) {
      if (const auto process = weak.lock()) {
        if (std::string why = why_halted(process->pid, is_own_helper); !why.empty()) {
          halted.emplace_back(weak, std::move(why));
        }
      }
    }
    if (halted.empty()) {
      return nullptr;
    }
    return [this, halted = std::move(halted)] {
      for (const auto& [weak, why] : halted) {
        const auto process = weak.lock();
        Worker* const worker = process ? table_.find_worker(process->pid) : nullptr;
        if (worker != nullptr && worker->process == process && !halted_.contains(process->pid)) {
          note_halt(*worker, why);
        }
      }
    };
  };
  if (!are_few) {
    side_threads_.run(std::move(look));
  } else if (const SideThreads::Delivery delivery = look()) {
    delivery();
  }
}

// ---------------------------------------------------------------------------------------------
// The server.

// Gives what was missed back to every open scope, once until it is renewed: a server that is always
// starved still acts.
void Server::make_up_for_oversleep(const Oversleep::Clocks& woke) {
  const auto missed = oversleep_.wake(woke);
  if (!missed) {
    return;
  }
  const Duration total = missed->total();
  std::size_t scopes = 0;
  // At most its full time: what would have been open longer than that has hung all the same.
  const auto longer = [&](Instant deadline, Duration timeout) {
    ++scopes;
    return std::max(deadline, woke.now) + std::min(total, timeout);
  };
  table_.for_each_worker([&](Worker& worker) {
    bool has_changed = false;
    for (Scope& scope : worker.by_age) {
      if (!scope.terms.is_extended && !scope.terms.deadline.is_never()) {
        scope.terms.is_extended = true;
        table_.postpone(scope, longer(scope.terms.deadline, scope.terms.timeout));
        has_changed = true;
      }
    }
    if (has_changed) {
      keep(worker);
    }
    for (const auto& page : worker.pages) {
      page->postpone_all(settings_.max_timeout.value_or(kForever), [&](const auto& open) {
        if (open.is_extended || open.deadline.is_never()) {
          return WorkerPage::Extension{open.deadline, open.is_extended};
        }
        return WorkerPage::Extension{longer(open.deadline, open.timeout), true};
      });
    }
  });
  scan_wanted_ = true;
  ladder_.give_time(total);
  const std::string reason =
      missed->suspended > missed->late
          ? fmt::format("the machine was suspended for {}", duration_for_reading(missed->suspended))
          : fmt::format("the server woke {} later than planned",
                        duration_for_reading(missed->late));
  if (scopes > 0) {
    log_->append(records_.deferred_all(total, scopes, reason));
  }
  messages::warning("{}: {} open scope{} given that time", reason, scopes,
                    scopes == 1 ? " is" : "s are");
}

}  // namespace filetimer
