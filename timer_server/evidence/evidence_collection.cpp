// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence_collection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "common/proc_files.hpp"
#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/evidence/stacks_helper.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// Slow evidence is not begun when less time is left.
constexpr Duration kLeastTime = milliseconds{100};
// The stacks helper ends this long before EvidenceOptions::until, so that the worker runs by then.
constexpr Duration kReleaseTime = milliseconds{20};
// At level kProc the slow evidence is the CPU sample alone. While this many workers wait for their
// evidence, the CPU sample of another worker is left out, so that its signal is not delayed.
constexpr std::size_t kMaxSampled = 32;

// Gives the slow evidence of a process to one collection at a time: a second stacks helper could
// not trace the process, and a second Python dump would be written into the first one.
class SlowTurn {
 public:
  // Waits until `until` at most while another collection has the turn.
  SlowTurn(pid_t pid, Instant until) : pid_(pid) {
    MutexLock lock(mutex_);
    while (taken_.contains(pid_)) {
      const Duration left = until - Instant::now();
      if (left <= Duration::zero()) {
        return;
      }
      freed_.wait_until(lock, std::chrono::steady_clock::now() + left);
    }
    taken_.insert(pid_);
    is_ours_ = true;
  }
  ~SlowTurn() {
    if (is_ours_) {
      const MutexLock lock(mutex_);
      taken_.erase(pid_);
      freed_.notify_all();
    }
  }
  SlowTurn(const SlowTurn&) = delete;
  SlowTurn& operator=(const SlowTurn&) = delete;
  [[nodiscard]] bool is_ours() const { return is_ours_; }

 private:
  // Never destroyed: a side thread that hangs may return while the process exits.
  inline static Mutex& mutex_ = *new Mutex;
  inline static ConditionVariable& freed_ = *new ConditionVariable;
  inline static std::set<pid_t>& taken_ = *new std::set<pid_t>;

  const pid_t pid_;
  bool is_ours_ = false;
};

double to_ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

EvidenceCollection::EvidenceCollection(SideThreads& side_threads,
                                       std::shared_ptr<const Process> process,
                                       EvidenceOptions options, std::function<void()> on_done)
    : side_threads_(side_threads),
      process_(std::move(process)),
      options_(std::move(options)),
      on_done_(std::move(on_done)) {}

std::shared_ptr<EvidenceCollection> EvidenceCollection::start(
    SideThreads& side_threads, std::shared_ptr<const Process> process, EvidenceOptions options,
    std::function<void()> on_done) {
  std::shared_ptr<EvidenceCollection> collection(new EvidenceCollection(
      side_threads, std::move(process), std::move(options), std::move(on_done)));
  side_threads.run(
      [collection]() -> SideThreads::Delivery {
        collection->set_activity("/proc was being read");
        const Process& worker = *collection->process_;
        Evidence evidence = read_proc_evidence(worker.pid, worker.start_time);
        if (collection->options_.early) {
          begin_cpu_sample(*collection->options_.early, evidence);
        }
        const bool is_open = collection->publish(evidence);
        collection->set_activity("the evidence of other workers was being collected");
        return [collection, is_open, has_ended = evidence.threads.empty()] {
          if (is_open) {
            collection->queue_slow_evidence(has_ended);
          }
        };
      },
      collection->options_.has_expired ? SideThreads::Lane::kQuick : SideThreads::Lane::kUnexpired);
  return collection;
}

// Called on the loop thread, so that the cheap evidence of all workers that expired together is
// collected first.
void EvidenceCollection::queue_slow_evidence(bool has_ended) {
  const std::size_t others = side_threads_.waiting(SideThreads::Lane::kQuick) +
                             side_threads_.waiting(SideThreads::Lane::kSlow);
  const bool is_crowded =
      options_.has_expired && options_.level == EvidenceLevel::kProc && others >= kMaxSampled;
  if (has_ended || is_crowded) {
    finish(is_crowded ? "no CPU sample: too many workers expired at once" : "");
    return;
  }
  side_threads_.run(
      [self = shared_from_this()]() -> SideThreads::Delivery {
        self->collect_slow_evidence();
        return [self] { self->finish(""); };
      },
      options_.has_expired ? SideThreads::Lane::kSlow : SideThreads::Lane::kUnexpired);
}

void EvidenceCollection::collect_slow_evidence() {
  std::optional<Evidence> so_far = published();
  if (!so_far) {
    return;
  }
  Evidence& evidence = *so_far;
  const bool wants_stacks = options_.level == EvidenceLevel::kStacks;
  const std::string none = wants_stacks ? "no CPU sample and no stacks: " : "no CPU sample: ";
  const Instant until = options_.until + -kReleaseTime;
  if (until - Instant::now() < kLeastTime) {
    evidence.add_missing(none + "time was up while the evidence of other workers was collected");
    publish(evidence);
    return;
  }
  const SlowTurn turn(process_->pid, until + -kLeastTime);
  if (!turn.is_ours()) {
    evidence.add_missing(none +
                         "the worker's evidence was being collected already until time was up");
    publish(evidence);
    return;
  }
  // The helper is started before the CPU sample, because it reads files before it stops the worker.
  std::optional<StacksHelper> helper;
  if (wants_stacks) {
    set_activity("the helper for native stacks was being started");
    const Duration for_python = std::min(kPythonDumpLimit, (until - Instant::now()) / 2);
    auto started = StacksHelper::start(process_->pid, process_->start_time,
                                       options_.python ? until + -for_python : until);
    if (started) {
      helper.emplace(std::move(*started));
    } else {
      evidence.add_missing("no native stacks: " + started.error().message);
    }
  }
  set_activity("CPU time was being sampled");
  sample_cpu(evidence);
  if (!publish(evidence)) {
    return;
  }
  if (helper) {
    set_activity("native stacks were being read");
    helper->collect(evidence);
    if (!publish(evidence)) {
      return;
    }
  }
  if (wants_stacks && options_.python) {
    set_activity("Python stacks were being written");
    // A stopped worker does not run the signal handler that writes the stacks.
    const auto stat = read_stat(fmt::format("/proc/{}", process_->pid));
    if (stat && (stat->state == 'T' || stat->state == 't')) {
      evidence.add_missing("no Python stacks: the worker is stopped");
    } else {
      take_python_dump(*process_, *options_.python, until, evidence);
    }
    if (!publish(evidence)) {
      return;
    }
  }
}

void EvidenceCollection::sample_cpu(Evidence& evidence) const {
  const Instant due = evidence.threads.back().sampled + kCpuSample;
  const Duration wait = std::min(due, options_.until) - Instant::now();
  std::this_thread::sleep_for(std::max(wait, Duration::zero()));
  finish_cpu_sample(process_->pid, evidence);
}

void EvidenceCollection::set_activity(const char* activity) {
  const MutexLock lock(mutex_);
  activity_ = activity;
}

bool EvidenceCollection::publish(const Evidence& evidence) {
  const MutexLock lock(mutex_);
  if (!is_taken_) {
    evidence_ = evidence;
  }
  return !is_taken_;
}

std::optional<Evidence> EvidenceCollection::published() {
  const MutexLock lock(mutex_);
  return is_taken_ ? std::nullopt : std::optional(evidence_);
}

void EvidenceCollection::finish(std::string_view missing) {
  {
    const MutexLock lock(mutex_);
    is_done_ = true;
    if (!missing.empty()) {
      evidence_.add_missing(missing);
    }
  }
  on_done_();
}

Evidence EvidenceCollection::take() {
  const MutexLock lock(mutex_);
  is_taken_ = true;
  if (!is_done_) {
    evidence_.add_missing(fmt::format("time was up while {}", activity_));
  }
  evidence_.gathered_ms = to_ms(Instant::now() - begun_);
  return std::move(evidence_);
}

}  // namespace filetimer
