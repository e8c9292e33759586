// SPDX-License-Identifier: MIT
#include "timer_server/evidence/gathering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/evidence/stacks_helper.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// A closer look is not begun with less time than this.
constexpr Duration kLeastTime = milliseconds{100};
// Between the end of a helper and the time at which the worker must be free.
constexpr Duration kLettingGo = milliseconds{20};
// Without stacks a closer look is the CPU sample alone. While so many workers wait for evidence,
// the others are signalled without it.
constexpr std::size_t kMaxSampled = 32;

double millis(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Gathering::Gathering(SideThreads& side_threads, std::shared_ptr<const Process> process,
                     EvidenceOptions options, std::function<void()> done)
    : side_threads_(side_threads),
      process_(std::move(process)),
      options_(std::move(options)),
      done_(std::move(done)) {}

std::shared_ptr<Gathering> Gathering::start(SideThreads& side_threads,
                                            std::shared_ptr<const Process> process,
                                            EvidenceOptions options, std::function<void()> done) {
  std::shared_ptr<Gathering> gathering(
      new Gathering(side_threads, std::move(process), std::move(options), std::move(done)));
  side_threads.run([gathering]() -> SideThreads::Delivery {
    gathering->note("/proc was being read");
    const Process& worker = *gathering->process_;
    const Evidence evidence = read_proc_evidence(worker.pid, worker.start_time);
    const bool is_open = gathering->publish(evidence);
    gathering->note("it waited for its turn behind other workers");
    // Back on the loop: everybody's cheap evidence is ahead of anybody's closer look.
    return [gathering, is_open, has_ended = evidence.threads.empty()] {
      if (!is_open) {
        return;
      }
      const std::size_t others = gathering->side_threads_.waiting(SideThreads::Lane::kQuick) +
                                 gathering->side_threads_.waiting(SideThreads::Lane::kSlow);
      const bool is_crowded =
          gathering->options_.level == EvidenceLevel::kProc && others >= kMaxSampled;
      if (has_ended || is_crowded) {
        gathering->finish(is_crowded ? "no CPU sample: too many workers expired at once" : "");
        return;
      }
      gathering->side_threads_.run(
          [gathering]() -> SideThreads::Delivery {
            gathering->look_closer();
            return [gathering] { gathering->finish(""); };
          },
          SideThreads::Lane::kSlow);
    };
  });
  return gathering;
}

void Gathering::look_closer() {
  std::optional<Evidence> so_far = published();
  if (!so_far) {
    return;
  }
  Evidence& evidence = *so_far;
  const bool wants_stacks = options_.level == EvidenceLevel::kStacks;
  const Instant until = options_.until + -kLettingGo;
  if (until - Instant::now() < kLeastTime) {
    evidence.miss(fmt::format("no CPU sample{}: time was up while other workers had their turn",
                              wants_stacks ? " and no stacks" : ""));
    publish(evidence);
    return;
  }
  // Started before the sample: it has to read files first, and nobody stands still for that.
  std::optional<StacksHelper> helper;
  if (wants_stacks) {
    note("the helper for native stacks was being started");
    const Duration for_python = std::min(kPythonDumpLimit, (until - Instant::now()) / 2);
    auto started = StacksHelper::start(process_->pid, process_->start_time,
                                       options_.python ? until + -for_python : until);
    if (started) {
      helper.emplace(std::move(*started));
    } else {
      evidence.miss("no native stacks: " + started.error().message);
    }
  }
  note("CPU time was being sampled");
  sample_cpu(evidence);
  if (!publish(evidence)) {
    return;
  }
  if (helper) {
    note("native stacks were being read");
    helper->collect(evidence);
    if (!publish(evidence)) {
      return;
    }
  }
  if (wants_stacks && options_.python) {
    note("Python stacks were being written");
    // A stopped worker runs no handler.
    if (evidence.state == 'T' || evidence.state == 't') {
      evidence.miss("no Python stacks: the worker is stopped");
    } else {
      take_python_dump(*process_, *options_.python, until, evidence);
    }
    publish(evidence);
  }
}

void Gathering::sample_cpu(Evidence& evidence) const {
  const Instant due = evidence.threads.back().sampled + kCpuSample;
  const Duration wait = std::min(due, options_.until) - Instant::now();
  std::this_thread::sleep_for(std::max(wait, Duration::zero()));
  finish_cpu_sample(process_->pid, evidence);
}

void Gathering::note(const char* doing) {
  const std::lock_guard lock(mutex_);
  doing_ = doing;
}

bool Gathering::publish(const Evidence& evidence) {
  const std::lock_guard lock(mutex_);
  if (!is_taken_) {
    evidence_ = evidence;
  }
  return !is_taken_;
}

std::optional<Evidence> Gathering::published() {
  const std::lock_guard lock(mutex_);
  return is_taken_ ? std::nullopt : std::optional(evidence_);
}

void Gathering::finish(std::string_view why_no_more) {
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    if (!why_no_more.empty()) {
      evidence_.miss(why_no_more);
    }
  }
  done_();
}

Evidence Gathering::take() {
  const std::lock_guard lock(mutex_);
  is_taken_ = true;
  if (!is_done_) {
    evidence_.miss(fmt::format("time was up while {}", doing_));
  }
  evidence_.gathered_ms = millis(Instant::now() - begun_);
  return std::move(evidence_);
}

}  // namespace filetimer
