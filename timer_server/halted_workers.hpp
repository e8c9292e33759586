// Workers that are stopped, frozen or traced.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/clock.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/side_threads.hpp"
#include "timer_server/workers.hpp"

namespace filetimer {

// Defers the deadlines of a worker that could not have met them, and gives the worker its full time
// when it is resumed (Worker::resumed). A worker is looked at when one of its deadlines has passed,
// at sweeps, and every kLookPeriod while it is halted; a halt that begins and ends between two looks
// is not noticed. Used on the loop thread.
class HaltedWorkers {
 public:
  // How long a worker that is resumed may run before its scopes' time begins anew.
  static constexpr Duration kLookPeriod = std::chrono::milliseconds{500};
  // Workers that a sweep looks at on the loop thread; more are looked at by a side thread.
  static constexpr std::size_t kFewWorkers = 16;

  // Returns why a process makes no progress; empty: it may. Called on side threads, too.
  using WhyHalted = std::function<std::string(pid_t)>;

  // All but `why_halted` outlives this object.
  struct Context {
    Workers& workers;
    Records& records;
    RecordLog& log;
    SideThreads& side_threads;
    WhyHalted why_halted;
  };
  explicit HaltedWorkers(Context context) : context_(std::move(context)) {}
  HaltedWorkers(const HaltedWorkers&) = delete;
  HaltedWorkers& operator=(const HaltedWorkers&) = delete;

  // Returns whether the passed deadline of a scope says nothing of its worker: the worker is halted,
  // or it was and has its full time now. Records the first deadline that passes in a halt; `scope`
  // reads it.
  bool should_defer(Worker& worker, const std::function<std::optional<ScopeView>()>& scope);
  // Looks at all workers with open scopes.
  void sweep();
  // Looks again at the workers that are halted.
  void advance(Instant now);
  // Returns when advance() has something to do; never() while no worker is halted.
  [[nodiscard]] Instant next() const { return next_look_; }
  // Returns whether a worker was resumed since the last call: deadlines have changed.
  bool take_resumed() { return std::exchange(has_resumed_, false); }
  // The worker has exited.
  void forget(pid_t pid) { halts_.erase(pid); }

 private:
  struct Halt {
    std::shared_ptr<const Process> process;
    std::string why;
    Instant since;  // seen first
    bool is_recorded = false;
  };
  Halt& note_halt(const Worker& worker, const std::string& why);
  void resume(Worker& worker, const Halt& halt);

  const Context context_;
  std::unordered_map<pid_t, Halt> halts_;
  Instant next_look_ = Instant::never();
  bool has_resumed_ = false;
};

}  // namespace filetimer
