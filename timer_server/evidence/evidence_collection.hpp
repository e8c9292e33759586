// Collects the evidence of one worker within one time limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "common/clock.hpp"
#include "common/mutex.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/python_dump.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

struct CpuSample;  // proc_evidence.hpp

struct EvidenceOptions {
  EvidenceLevel level = EvidenceLevel::kStacks;
  // At this time nothing new is begun, and the stacks helper no longer stops the worker.
  Instant until;
  // Collected at kStacks only. Not for a warning, nor for a worker that is to be spared: the signal
  // may wake the worker.
  std::optional<PythonDump> python;
  bool has_expired = true;  // false: the collection takes no side thread from those of kills
  std::shared_ptr<const CpuSample> early{};  // from before the deadline; null: none
};

// Collects what is cheap first, for every worker. Then collects what takes time, for a few workers
// at once: a sample of CPU time, the native stacks, the Python stacks, one after the other. A
// collection needs no kill: warnings, the evidence of peers and `dump` requests use it as well.
//
//   auto collection = EvidenceCollection::start(side_threads, worker.process, options, on_done);
//   ...
//   Evidence evidence = collection->take();   // in on_done, or when there is no more time
//
// start(), take() and `on_done` run on the loop thread, everything else on side threads. Side
// threads share the ownership of a collection.
class EvidenceCollection : public std::enable_shared_from_this<EvidenceCollection> {
 public:
  // Starts a collection. Calls `on_done` once, or never if a side thread hangs. `side_threads` must
  // outlive the collection.
  static std::shared_ptr<EvidenceCollection> start(SideThreads& side_threads,
                                                   std::shared_ptr<const Process> process,
                                                   EvidenceOptions options,
                                                   std::function<void()> on_done);

  // Returns what was collected so far and ends the collection. If the collection was not done,
  // `missing` says what was under way.
  Evidence take();

 private:
  EvidenceCollection(SideThreads& side_threads, std::shared_ptr<const Process> process,
                     EvidenceOptions options, std::function<void()> on_done);
  // On a side thread.
  void collect_slow_evidence();
  void sample_cpu(Evidence& evidence) const;
  // Sets the reason that take() gives if the collection is not done by then.
  void set_activity(const char* activity);
  // Stores what was collected so far. Returns false after take().
  bool publish(const Evidence& evidence);
  // Returns what was published last, or nothing after take().
  std::optional<Evidence> published();
  // On the loop thread.
  void queue_slow_evidence(bool has_ended);
  void finish(std::string_view missing);

  SideThreads& side_threads_;
  const std::shared_ptr<const Process> process_;
  const EvidenceOptions options_;
  const std::function<void()> on_done_;
  const Instant begun_ = Instant::now();

  Mutex mutex_;
  Evidence evidence_ FILETIMER_GUARDED_BY(mutex_);
  const char* activity_ FILETIMER_GUARDED_BY(mutex_) = "the side threads were busy";
  bool is_done_ FILETIMER_GUARDED_BY(mutex_) = false;
  bool is_taken_ FILETIMER_GUARDED_BY(mutex_) = false;
};

}  // namespace filetimer
