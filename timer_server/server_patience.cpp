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

// Returns whether the worker could not have met the deadline: it is halted, or was and has its full
// time now.
bool Server::should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due) {
  if (settings_.stopped == Settings::Stopped::kKill) {
    return false;
  }
  const auto known = halted_.find(worker.process->pid);
  if (known != halted_.end() && known->second.is_recorded) {
    return true;  // look_at_halted() notices that it is resumed
  }
  const std::string why = why_halted(worker.process->pid, is_own_helper);
  if (why.empty()) {
    if (known == halted_.end()) {
      return false;
    }
    resume(worker, known->second);
    halted_.erase(known);
    return true;
  }
  Halt& halt = known != halted_.end() ? known->second : note_halt(worker, why);
  const auto reading = page.read(due.slot, due.word);
  if (reading) {
    ScopeView scope = view_of(*reading);
    scope.terms.deadline = due.deadline;
    halt.is_recorded = true;
    log_->append(records_.deferred(WorkerIdentity::of(worker), scope, Instant::now(), halt.why));
    messages::info("pid {} ({}) is deferred in '{}': {}", worker.process->pid, worker.process->comm,
                   scope.name, halt.why);
  }
  return true;
}

Server::Halt& Server::note_halt(const Worker& worker, const std::string& why) {
  const Instant now = Instant::now();
  next_halt_look_ = std::min(next_halt_look_, now + kLookAgain);
  return halted_[worker.process->pid] = Halt{worker.process, why, now, false};
}

// Gives its scopes their full time from now on: see MissedTime.
void Server::resume(Worker& worker, const Halt& halt) {
  worker.resumed = Instant::now();
  scan_wanted_ = true;
  messages::info("pid {} ({}) is resumed after {}: its scopes have their full time again",
                 worker.process->pid, worker.process->comm,
                 duration_for_reading(worker.resumed - halt.since));
}

void Server::look_at_halted(Instant now) {
  next_halt_look_ = Instant::never();
  for (auto entry = halted_.begin(); entry != halted_.end();) {
    Worker* const worker = workers_.find(entry->first);
    const bool is_it = worker != nullptr && worker->process == entry->second.process;
    const bool is_halted = is_it && !why_halted(entry->first, is_own_helper).empty();
    if (is_it && !is_halted) {
      resume(*worker, entry->second);
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
  workers_.for_each([&](const Worker& worker) {
    if (!worker.dying && !worker.has_no_scopes()) {
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
        Worker* const worker = process ? workers_.find(process->pid) : nullptr;
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

// Gives what was missed back to every open scope, once until it is renewed: see MissedTime.
void Server::make_up_for_oversleep(const Oversleep::Clocks& woke) {
  const auto missed = oversleep_.wake(woke);
  if (!missed) {
    return;
  }
  const Duration total = missed->total();
  std::size_t scopes = 0;
  workers_.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      scopes += page->count_given_time(scan_of(worker, woke.now), woke.now);
    }
  });
  missed_.add(woke.now, total);
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
