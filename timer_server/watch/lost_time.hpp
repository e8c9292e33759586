// Time that scopes get back: in which the server could not run, or their worker was stopped, frozen
// or traced.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.hpp"
#include "common/due.hpp"
#include "common/posix.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Measures the time in which the server was stopped or starved, or the machine was paused. A
// deadline that passed in that time says nothing about its worker.
//
//   missed = missed_time.on_wake(clocks);                 // the loop wakes
//   ...                                                   // the loop works
//   missed_time.on_sleep(next, tolerated, Clocks::read()) // it sleeps until `next` at the latest
//
// The class reads no clock itself.
class MissedTime {
 public:
  // Clocks that were read at the same time.
  struct Clocks {
    Instant now;
    Duration worked{};  // CPU time of the calling thread

    static Clocks read() { return {Instant::now(), read_clock(CLOCK_THREAD_CPUTIME_ID)}; }
  };

  // Returns the time that was missed since the last call: the loop runs later than planned, or did
  // not run in the middle of its work. Returns zero if that is not longer than is tolerated.
  Duration on_wake(const Clocks& clocks) {
    const Duration late = away_ + std::max(clocks.now - planned_, Duration::zero());
    away_ = {};
    planned_ = Instant::never();
    woke_ = clocks;
    return late > tolerated_ ? late : Duration::zero();
  }
  // Notes that all time until `clocks` was given back: on_sleep() counts from then.
  void on_given_back(const Clocks& clocks) { woke_ = clocks; }
  // Notes that the server sleeps until `planned` at the latest, and that it may wake by `tolerated`
  // later. The time since on_wake() in which the server used the processor is not missed time; the
  // rest of it is.
  void on_sleep(Instant planned, Duration tolerated, const Clocks& clocks) {
    planned_ = std::max(planned, clocks.now);
    tolerated_ = tolerated;
    const Duration away = (clocks.now - woke_.now) - (clocks.worked - woke_.worked);
    away_ = away > tolerated ? away : Duration::zero();
  }

 private:
  Clocks woke_;
  Instant planned_ = Instant::never();
  Duration tolerated_ = Looks::kMostTolerated;
  Duration away_{};  // of the last iteration: time in which the server did not run
};

// Defers the deadlines of a halted worker, and notes when the worker was halted (Worker::lost),
// so that its scopes get that time back: from the last look that found it running to the one that
// finds it running again, less what the server lost of it. A worker is looked at when one of its
// deadlines has passed, with the server's looks (looks_for()), and every kLookPeriod while it is
// halted. A halt that begins and ends between two looks is not noticed.
class HaltedWorkers : NotCopied {
 public:
  // How often a halted worker is looked at.
  static constexpr Duration kLookPeriod = std::chrono::milliseconds{500};
  // The most workers that look_at_all() looks at on the loop thread. A side thread looks at more.
  static constexpr std::size_t kFewWorkers = 16;
  // The least time from one look at all workers to the next, for each of them.
  static constexpr Duration kPerWorker = std::chrono::milliseconds{1};

  // How long the look of look_ahead() holds. A halt that begins in this time is not noticed.
  static constexpr Duration kFresh = std::chrono::microseconds{500};

  explicit HaltedWorkers(Core& core) : core_(core) {}

  // Returns whether a deadline that has passed is deferred, because the worker is halted, or was
  // resumed a moment ago and has a later deadline now; false with --stopped kill. Records the first
  // deadline that is deferred in a halt.
  bool should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due);
  // Looks at a worker whose deadline is a moment away. If it is not halted, should_defer() looks at
  // it only after kFresh.
  static void look_ahead(Worker& worker) {
    const Instant now = Instant::now();
    if (why_halted(worker.process->pid).empty()) {
      worker.found_running = now;
    }
  }
  // Looks at all workers with open scopes. Does nothing with --stopped kill, and while a side
  // thread still does so for an earlier call, because thousands of workers may take longer than a
  // short pause between looks. `now`: when the iteration began.
  void look_at_all(Instant now);
  // Returns when look_at_all() is due, if a look is wanted every `pause`. The looks take no more
  // than a twenty-fifth of a processor: with many workers there are fewer.
  [[nodiscard]] Instant next_look_at_all(Duration pause) const {
    return last_look_ + std::max<Duration>(pause, core_.workers.count() * kPerWorker);
  }
  // Looks again at the halted workers.
  void advance(Instant now);
  // Returns when advance() has something to do; never() while no worker is halted.
  [[nodiscard]] Instant next() const { return next_look_; }

 private:
  void note_halt(Worker& worker, const std::string& why) {
    next_look_ = std::min(next_look_, Instant::now() + kLookPeriod);
    worker.halt = {why, std::max(last_look_, worker.process->started())};
  }
  void resume(Worker& worker);

  Core& core_;
  Instant next_look_ = Instant::never();
  Instant last_look_;                   // at all workers: when it began
  std::weak_ptr<char> look_under_way_;  // expired: no look is under way
};

}  // namespace filetimer
