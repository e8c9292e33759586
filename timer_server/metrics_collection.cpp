// SPDX-License-Identifier: MIT
#include "timer_server/metrics_collection.hpp"

#include <algorithm>
#include <utility>

#include "common/scope_page.hpp"

namespace filetimer {

void MetricsCollection::begin() {
  loop_thread_.check();
  is_under_way_ = true;
  unread_.clear();
  open_scopes_ = 0;
  oldest_ = deadline_ = Instant::never();
  durations_ = pages_.ended_durations().values();
  workers_.for_each([&](const Worker& worker) {
    for (const auto& page : worker.pages) {
      unread_.push_back({worker.process, page});
    }
  });
}

bool MetricsCollection::advance(Duration limit) {
  loop_thread_.check();
  const Instant until = Instant::now() + limit;
  while (!unread_.empty()) {
    read(unread_.front());
    unread_.pop_front();
    if (Instant::now() >= until) {
      break;
    }
  }
  is_under_way_ = !unread_.empty();
  return !is_under_way_;
}

void MetricsCollection::read(const Unread& next) {
  StatisticsByName statistics;
  next.page->add_statistics(statistics);
  for (const auto& [name, of_name] : statistics) {
    add_durations(durations_[pages_.ended_durations().label_of(name)], of_name);
  }
  const Worker* const worker = workers_.find(next.process->pid);
  if (worker != nullptr && worker->process == next.process) {
    read_open_scopes(*worker, *next.page);
  }
}

void MetricsCollection::read_open_scopes(const Worker& worker, WorkerPage& page) {
  for (const SlotReading& reading : page.open_slots()) {
    if (!slot_word::is_open(reading.word)) {
      continue;
    }
    ++open_scopes_;
    const ScopeTerms terms = policy_.view_of(reading, worker).terms;
    oldest_ = std::min(oldest_, terms.acquired);
    deadline_ = std::min(deadline_, terms.deadline);  // a paused scope has that of --max-timeout
  }
}

void MetricsCollection::add_to(Metrics& metrics, Instant now) {
  metrics.open_scopes = open_scopes_;
  if (!oldest_.is_never()) {
    metrics.oldest_scope_age = std::max(now - oldest_, Duration::zero());
  }
  if (!deadline_.is_never()) {
    metrics.until_deadline = deadline_ - now;
  }
  metrics.durations = std::exchange(durations_, {});
}

}  // namespace filetimer
