// The evidence desk: takes orders for the evidence of workers, and delivers each within its time
// limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/python_dump.hpp"
#include "timer_server/system/mutex.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

struct CpuSample;         // proc_evidence.hpp
class IdleStacksHelpers;  // stacks_helper.hpp

// What the evidence is for. A signal waits for that of kSignal: it begins at once, on the side
// threads of kills. Of the others EvidenceDesk::kSideBySide are collected at a time.
enum class EvidenceFor { kSignal, kWarning, kPeers, kDump };

struct EvidenceRequest {
  std::shared_ptr<const Process> worker;
  EvidenceLevel level = EvidenceLevel::kStacks;
  EvidenceFor use = EvidenceFor::kSignal;
  // When it is delivered at the latest. Nothing new is begun then, and the stacks helper no longer
  // stops the worker.
  Instant until;
  Duration limit = kForever;  // likewise, from its beginning
  // Collected at kStacks only. Not for a warning without a signal, nor for a worker that is to be
  // spared: the signal of the dump may wake the worker.
  std::optional<PythonDump> python{};
  std::shared_ptr<const CpuSample> early{};  // from before the deadline; null: none
};

// The evidence of one worker: first what is cheap, then what takes time: a sample of CPU time, the
// native stacks, the Python stacks, one after the other. Side threads share the ownership. The
// public members are called on the loop thread.
class EvidenceCollection {
 public:
  // Takes the evidence. Unless it `is_complete`, its `missing` says what was under way.
  using Done = std::function<void(Evidence evidence, bool is_complete)>;

  EvidenceCollection(EvidenceRequest request, Done done)
      : request_(std::move(request)), done_(std::move(done)), until_(request_.until) {}
  [[nodiscard]] bool has_begun() const { return begun_.has_value(); }
  // Moves the time limit to `until`, if that is earlier.
  void end_by(Instant until) { until_ = std::min(until_, until); }
  // Delivers what was collected so far, unless it was delivered.
  void end() { deliver(false, ""); }

 private:
  friend class EvidenceDesk;
  void withdraw();
  void deliver(bool is_complete, std::string_view missing);
  // On a side thread.
  void add_slow(Evidence& evidence, IdleStacksHelpers& helpers);
  // Stores what is done next: the reason that is given if time is up meanwhile; and what was
  // collected so far, which takes longer. Returns false if the evidence was delivered or withdrawn.
  bool note(const char* activity, const Evidence* collected = nullptr);

  EvidenceRequest request_;  // does not change once it has begun
  Done done_;                // null: delivered or withdrawn
  Instant until_;
  std::optional<Instant> begun_;     // none: it waits for its turn
  std::shared_ptr<Evidence> cheap_;  // null: not read yet, or what takes time has begun
  bool is_slow_ = false;             // what takes time is being collected

  Mutex mutex_;
  Evidence evidence_ FILETIMER_GUARDED_BY(mutex_);
  const char* activity_ FILETIMER_GUARDED_BY(mutex_) = "the side threads were busy";
  bool is_ended_ FILETIMER_GUARDED_BY(mutex_) = false;
};

// An order is withdrawn when its last owner drops it.
using EvidenceOrder = std::shared_ptr<EvidenceCollection>;

// Delivers the evidence of each order once: when it is complete, or when its time is up. What takes
// time begins when the cheap evidence of all workers that expired together has been read, and for
// one order of a worker at a time: a second stacks helper could not trace the worker, and a second
// Python dump would be written into the first one.
//
//   order = desk.collect({.worker = process, .until = until}, now,
//                        [this](Evidence evidence, bool) { ...; order.reset(); });
//   ...
//   desk.advance(now);    // in each iteration, before what waits for evidence
//   next = desk.next();
//
// Used on the loop thread, on which `done` is called as well. `side_threads` must outlive the desk.
class EvidenceDesk {
 public:
  // So many collections of each use run at a time, whether their workers answer or not: one that
  // hangs counts until its side thread returns, also after it was delivered.
  static constexpr long kSideBySide = 2;
  static_assert(SideThreads::max_threads(SideThreads::Lane::kUnexpired) >= 3 * kSideBySide);

  explicit EvidenceDesk(SideThreads& side_threads);

  // Does not call `done` itself.
  [[nodiscard]] EvidenceOrder collect(EvidenceRequest request, Instant now,
                                      EvidenceCollection::Done done);
  // Delivers what has no more time, and begins what there is a place for. Must also be called when
  // the side threads have delivered.
  void advance(Instant now);
  // Returns when advance() must be called at the latest, or never().
  [[nodiscard]] Instant next() const;

 private:
  bool begin_waiting(Instant now);
  void begin_if_possible(const std::shared_ptr<EvidenceCollection>& collection, Instant now);
  bool begin_slow(const std::shared_ptr<EvidenceCollection>& collection);

  SideThreads& side_threads_;
  const std::shared_ptr<IdleStacksHelpers> helpers_;
  std::vector<std::shared_ptr<EvidenceCollection>> collections_;  // in the order of their requests
  std::array<long, 4> begun_{};  // by use: those in `collections_` that have begun
};

}  // namespace filetimer
