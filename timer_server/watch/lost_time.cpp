// SPDX-License-Identifier: MIT
#include "timer_server/watch/lost_time.hpp"

#include <time.h>

#include <algorithm>
#include <vector>

#include "common/duration_text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

MissedTime::Clocks MissedTime::Clocks::read() {
  timespec worked{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return {Instant::now(),
          std::chrono::seconds{worked.tv_sec} + std::chrono::nanoseconds{worked.tv_nsec}};
}

Duration MissedTime::on_wake(const Clocks& clocks) {
  const Duration late = away_ + std::max(clocks.now - planned_, Duration::zero());
  away_ = {};
  planned_ = Instant::never();
  woke_ = clocks;
  return late > tolerated_ ? late : Duration::zero();
}

void MissedTime::on_sleep(Instant planned, Duration tolerated, const Clocks& clocks) {
  planned_ = std::max(planned, clocks.now);
  tolerated_ = tolerated;
  const Duration away = (clocks.now - woke_.now) - (clocks.worked - woke_.worked);
  away_ = away > tolerated ? away : Duration::zero();
}

bool HaltedWorkers::should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due) {
  if (core_.settings.stopped == Settings::Stopped::kKill) {
    return false;
  }
  const auto known = halts_.find(worker.process->pid);
  if (known != halts_.end() && known->second.is_recorded) {
    return true;  // advance() notices that the worker is resumed
  }
  if (known == halts_.end() && Instant::now() - worker.found_running <= kFresh) {
    return false;
  }
  const std::string why = why_halted(worker.process->pid);
  if (why.empty()) {
    if (known == halts_.end()) {
      return false;
    }
    resume(worker, known->second);
    halts_.erase(known);
    return true;
  }
  Halt& halt = known != halts_.end() ? known->second : note_halt(worker, why);
  if (const auto reading = page.read(due.slot, due.word)) {
    SlotReading view = core_.policy.view_of(*reading);
    view.deadline = due.deadline;
    halt.is_recorded = true;
    ++core_.counters.deferred[view.name];
    core_.log->append(core_.records.deferred(worker, view, Instant::now(), halt.why));
    messages::info("deadline of scope '{}' deferred: pid {} ({}) is {}", view.name,
                   worker.process->pid, worker.process->comm, halt.why);
  }
  return true;
}

void HaltedWorkers::look_ahead(Worker& worker) {
  const Instant now = Instant::now();
  if (why_halted(worker.process->pid).empty()) {
    worker.found_running = now;
  }
}

HaltedWorkers::Halt& HaltedWorkers::note_halt(const Worker& worker, const std::string& why) {
  const Instant now = Instant::now();
  next_look_ = std::min(next_look_, now + kLookPeriod);
  const Instant from = std::max(last_look_, worker.process->started());
  return halts_[worker.process->pid] = Halt{worker.process, why, from, false};
}

void HaltedWorkers::resume(Worker& worker, const Halt& halt) {
  const Instant now = Instant::now();
  worker.lost.add(halt.from, now);
  has_resumed_ = true;
  messages::info("pid {} ({}) is resumed: its scopes get the time back, at most {}",
                 worker.process->pid, worker.process->comm, duration_for_reading(now - halt.from));
}

void HaltedWorkers::advance(Instant now) {
  if (now < next_look_) {
    return;
  }
  for (auto entry = halts_.begin(); entry != halts_.end();) {
    Worker* const worker = core_.workers.find(*entry->second.process);
    const bool is_halted = worker != nullptr && !why_halted(entry->first).empty();
    if (worker != nullptr && !is_halted) {
      resume(*worker, entry->second);
    }
    entry = is_halted ? std::next(entry) : halts_.erase(entry);
  }
  next_look_ = halts_.empty() ? Instant::never() : now + kLookPeriod;
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
        if (worker != nullptr && !halts_.contains(process->pid)) {
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
