// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence_desk.hpp"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <thread>

#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/evidence/stacks_helper.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// Slow evidence is not begun when less time is left.
constexpr Duration kLeastTime = milliseconds{100};
// The stacks helper ends this long before EvidenceRequest::until, so that the worker runs by then.
constexpr Duration kReleaseTime = milliseconds{20};
// At level kProc the slow evidence is the CPU sample alone. While this many workers wait for their
// evidence, the CPU sample of another worker is left out, so that its signal is not delayed.
constexpr std::size_t kMaxSampled = 32;

}  // namespace

void EvidenceCollection::add_slow(Evidence& evidence, IdleStacksHelpers& helpers) {
  // The helper of another order had stopped the worker. That order has ended since.
  if (evidence.threads.front().state == 't') {
    Evidence again = read_proc_evidence(request_.worker->pid, request_.worker->start_time);
    if (!again.threads.empty()) {
      evidence = std::move(again);
    }
  }
  const bool wants_stacks = request_.level == EvidenceLevel::kStacks;
  const std::string none = wants_stacks ? "no CPU sample and no stacks: " : "no CPU sample: ";
  const Instant until = request_.until + -kReleaseTime;
  if (until - Instant::now() < kLeastTime) {
    return evidence.add_missing(none + "too little time was left");
  }
  // The helper is started before the CPU sample, because it reads files before it stops the worker.
  auto helper = request_.early ? request_.early->helper : nullptr;
  if (helper && helper->until() - Instant::now() < kLeastTime) {
    helper = nullptr;  // it was started for an earlier deadline
  }
  if (wants_stacks && !helper) {
    note("the helper for native stacks was being started");
    const Duration for_python = std::min(kPythonDumpLimit, (until - Instant::now()) / 2);
    auto started = helpers.start(request_.worker->pid, request_.worker->start_time,
                                 request_.python ? until + -for_python : until);
    if (started) {
      helper = std::make_shared<StacksHelper>(std::move(*started));
    } else {
      evidence.add_missing("no native stacks: " + started.error().message);
      note("CPU time was being sampled", &evidence);
    }
  }
  note("CPU time was being sampled");
  read_other_threads(request_.worker->pid, request_.worker->start_time, evidence);
  const Instant due = evidence.threads.back().sampled + kCpuSample;
  const Duration wait = std::min(due, request_.until) - Instant::now();
  std::this_thread::sleep_for(std::max(wait, Duration::zero()));
  finish_cpu_sample(request_.worker->pid, evidence);
  if (helper && note("native stacks were being read", &evidence)) {
    helper->collect(evidence);
    if (helper->is_idle()) {
      helpers.keep(std::move(*helper));
    }
  }
  if (wants_stacks && request_.python && note("Python stacks were being written", &evidence)) {
    // A stopped worker does not run the signal handler that writes the stacks. When the helper lets
    // go of it, the kernel shows it as running for a moment, so that both looks count.
    const auto stat = read_stat(fmt::format("/proc/{}", request_.worker->pid));
    const std::string states{evidence.threads.front().state, stat ? stat->state : '?'};
    if (states.find_first_of("Tt") != std::string::npos) {
      evidence.add_missing("no Python stacks: the worker is stopped");
    } else {
      take_python_dump(*request_.worker, *request_.python, until, evidence);
    }
  }
}

bool EvidenceCollection::note(const char* activity, const Evidence* collected) {
  Evidence to_deliver = collected != nullptr ? folded(*collected) : Evidence{};
  const MutexLock lock(mutex_);
  activity_ = activity;
  if (collected != nullptr && !is_ended_) {
    evidence_ = std::move(to_deliver);
  }
  return !is_ended_;
}

void EvidenceCollection::deliver(bool is_complete, std::string_view missing) {
  if (!done_) {
    return;
  }
  Evidence evidence;
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
    evidence = std::exchange(evidence_, {});
    evidence.add_missing(!has_begun()   ? "there was no time for this worker"
                         : !is_complete ? fmt::format("time was up while {}", activity_)
                                        : missing);
  }
  evidence.gathered_ms = in_milliseconds(Instant::now() - begun_.value_or(Instant{}));
  std::exchange(done_, nullptr)(std::move(evidence), is_complete);
}

void EvidenceCollection::withdraw() {
  done_ = nullptr;
  const MutexLock lock(mutex_);
  is_ended_ = true;
  evidence_ = {};
}

EvidenceDesk::EvidenceDesk(SideThreads& side_threads)
    : side_threads_(side_threads), helpers_(std::make_shared<IdleStacksHelpers>()) {}

EvidenceOrder EvidenceDesk::collect(EvidenceRequest request, Instant now,
                                    EvidenceCollection::Done done) {
  const auto collection = collections_.emplace_back(
      std::make_shared<EvidenceCollection>(std::move(request), std::move(done)));
  // First, so that an exception withdraws it: `done` must not be called then.
  EvidenceOrder order{collection.get(),
                      [collection](EvidenceCollection*) { collection->withdraw(); }};
  begin_if_possible(collection, now);
  return order;
}

void EvidenceDesk::begin_if_possible(const std::shared_ptr<EvidenceCollection>& collection,
                                     Instant now) {
  const bool is_for_signal = collection->request_.use == EvidenceFor::kSignal;
  long& begun = begun_.at(static_cast<std::size_t>(collection->request_.use));
  if (!collection->done_ || collection->has_begun() || (!is_for_signal && begun >= kSideBySide)) {
    return;
  }
  ++begun;
  collection->begun_ = Instant::now();
  collection->end_by(now + collection->request_.limit);
  collection->request_.until = collection->until_;
  side_threads_.run(
      [collection]() -> SideThreads::Delivery {
        collection->note("/proc was being read");
        const Process& worker = *collection->request_.worker;
        auto evidence =
            std::make_shared<Evidence>(read_proc_evidence(worker.pid, worker.start_time));
        if (collection->request_.early) {
          begin_cpu_sample(*collection->request_.early, *evidence);
        }
        collection->note("the evidence of other workers was being collected", evidence.get());
        return [collection, evidence] { collection->cheap_ = evidence; };
      },
      is_for_signal ? SideThreads::Lane::kQuick : SideThreads::Lane::kUnexpired);
}

// Returns false if the evidence is delivered without what takes time.
bool EvidenceDesk::begin_slow(const std::shared_ptr<EvidenceCollection>& collection) {
  const std::shared_ptr<Evidence> evidence = std::exchange(collection->cheap_, nullptr);
  const std::size_t others = side_threads_.waiting(SideThreads::Lane::kQuick) +
                             side_threads_.waiting(SideThreads::Lane::kSlow);
  const bool is_for_signal = collection->request_.use == EvidenceFor::kSignal;
  if (evidence->threads.empty()) {  // the worker has ended
    collection->deliver(true, "");
    return false;
  }
  if (is_for_signal && collection->request_.level == EvidenceLevel::kProc &&
      others >= kMaxSampled) {
    collection->deliver(true, "no CPU sample: too many workers expired at once");
    return false;
  }
  collection->is_slow_ = true;
  side_threads_.run(
      [collection, evidence, helpers = helpers_]() -> SideThreads::Delivery {
        if (collection->note("the evidence of other workers was being collected")) {
          collection->add_slow(*evidence, *helpers);
          collection->note("the evidence was complete", evidence.get());
        }
        return [collection] {
          collection->is_slow_ = false;
          collection->deliver(true, "");
        };
      },
      is_for_signal ? SideThreads::Lane::kSlow : SideThreads::Lane::kUnexpired);
  return true;
}

void EvidenceDesk::advance(Instant now) {
  // By index, because `done` may collect further evidence.
  for (std::size_t i = 0; i < collections_.size(); ++i) {
    if (now >= collections_[i]->until_) {
      collections_[i]->end();
    }
  }
  while (begin_waiting(now)) {
  }
}

// Returns whether an order was delivered at once, which may leave its place to another one.
bool EvidenceDesk::begin_waiting(Instant now) {
  // What has ended leaves its turn, and the worker, to others when its side thread has returned.
  std::erase_if(collections_, [&](const auto& collection) {
    const bool is_over = !collection->done_ && collection.use_count() == 1;
    begun_.at(static_cast<std::size_t>(collection->request_.use)) -=
        is_over && collection->has_begun() ? 1 : 0;
    return is_over;
  });
  // One whose side thread hangs stays in `collections_`.
  if (std::ranges::none_of(collections_, [](const auto& each) { return each->done_ != nullptr; })) {
    helpers_->clear();
  }
  bool is_one_delivered = false;
  std::set<const Process*> busy;
  for (const auto& collection : collections_) {
    if (collection->is_slow_) {
      busy.insert(collection->request_.worker.get());
    }
  }
  for (std::size_t i = 0; i < collections_.size(); ++i) {
    const std::shared_ptr<EvidenceCollection> collection = collections_[i];
    const Process* const worker = collection->request_.worker.get();
    begin_if_possible(collection, now);
    if (!collection->done_ || !collection->cheap_) {
      continue;
    }
    if (busy.contains(worker)) {
      collection->note("the worker's evidence was being collected already");
    } else if (begin_slow(collection)) {
      busy.insert(worker);
    } else {
      is_one_delivered = true;
    }
  }
  return is_one_delivered;
}

Instant EvidenceDesk::next() const {
  Instant next = Instant::never();
  for (const auto& collection : collections_) {
    next = std::min(next, collection->done_ ? collection->until_ : Instant::never());
  }
  return next;
}

}  // namespace filetimer
