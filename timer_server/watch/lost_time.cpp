// SPDX-License-Identifier: MIT
#include "timer_server/watch/lost_time.hpp"

#include <vector>

#include "common/duration_text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

bool HaltedWorkers::should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due) {
  if (core_.settings.stopped == Settings::Stopped::kKill) {
    return false;
  }
  if (worker.halt && worker.halt->is_recorded) {
    return true;  // advance() notices that the worker is resumed
  }
  if (!worker.halt && Instant::now() - worker.found_running <= kFresh) {
    return false;
  }
  const std::string why = why_halted(worker.process->pid);
  if (why.empty()) {
    if (!worker.halt) {
      return false;
    }
    resume(worker);
    return true;
  }
  if (!worker.halt) {
    note_halt(worker, why);
  }
  if (const auto reading = page.read(due.slot, due.word)) {
    SlotReading view = core_.policy.view_of(*reading);
    view.deadline = due.deadline;
    if (view.has(slot_flag::kIdle)) {
      view.acquired = due.deadline + -view.timeout;  // the last release, as in the verdict
    }
    worker.halt->is_recorded = true;
    ++core_.counters.deferred[view.name];
    core_.log->append(core_.records.deferred(worker, view, Instant::now(), worker.halt->why));
    messages::info("deadline of scope '{}' deferred: pid {} ({}) is {}", view.name,
                   worker.process->pid, worker.comm(), worker.halt->why);
  }
  return true;
}

void HaltedWorkers::resume(Worker& worker) {
  const Instant now = Instant::now();
  const Instant from = worker.halt->from;
  // What the server could not run of that time is given back already.
  worker.lost.add(from + (core_.lost.extended(now, {from}) - now), now);
  worker.halt.reset();
  core_.wants_scan = true;
  messages::info("pid {} ({}) is resumed: its scopes get the time back, at most {}",
                 worker.process->pid, worker.comm(), duration_for_reading(now - from));
}

void HaltedWorkers::advance(Instant now) {
  if (now < next_look_) {
    return;
  }
  Instant next = Instant::never();
  core_.workers.for_each([&](Worker& worker) {
    if (worker.halt && why_halted(worker.process->pid).empty()) {
      resume(worker);
    } else if (worker.halt) {
      next = now + kLookPeriod;
    }
  });
  next_look_ = next;
}

// One look takes about 40 us.
void HaltedWorkers::look_at_all(Instant now) {
  if (core_.settings.stopped == Settings::Stopped::kKill || !look_under_way_.expired()) {
    return;
  }
  std::vector<std::weak_ptr<const Process>> watched;
  core_.workers.for_each([&](const Worker& worker) {
    if (!worker.is_dying() && !worker.has_no_scopes()) {
      watched.push_back(worker.process);
    }
  });
  if (watched.empty()) {
    last_look_ = now;
    return;
  }
  const bool are_few = watched.size() <= kFewWorkers;
  const auto token = std::make_shared<char>();  // lives as long as the job, also if it is dropped
  look_under_way_ = token;
  auto look = [this, token, now, watched = std::move(watched)]() -> SideThreads::Delivery {
    std::vector<std::pair<std::weak_ptr<const Process>, std::string>> halted;
    for (const auto& weak : watched) {
      if (const auto process = weak.lock()) {
        if (std::string why = why_halted(process->pid); !why.empty()) {
          halted.emplace_back(weak, std::move(why));
        }
      }
    }
    return [this, now, halted = std::move(halted)] {
      for (const auto& [weak, why] : halted) {
        const auto process = weak.lock();
        Worker* const worker = process ? core_.workers.find(*process) : nullptr;
        if (worker != nullptr && !worker->halt) {
          note_halt(*worker, why);
        }
      }
      last_look_ = now;
    };
  };
  if (are_few) {
    look()();
  } else {
    core_.side_threads.run(std::move(look), SideThreads::Lane::kLooks);
  }
}

}  // namespace filetimer
