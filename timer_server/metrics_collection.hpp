// What metrics tell of the scopes of all workers.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "common/clock.hpp"
#include "timer_server/metrics.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/system/loop_thread.hpp"
#include "timer_server/watch/page_registry.hpp"
#include "timer_server/watch/scope_policy.hpp"

namespace filetimer {

// Reads the pages of all workers, a few in each iteration of the loop, so that no deadline waits
// for thousands of pages. Pages that are removed meanwhile are read nevertheless: what they count
// was counted before. Used on the loop thread. The references must outlive this object.
//
//   collection.begin();
//   while (!collection.advance()) { ... }  // one call in each iteration
//   collection.add_to(metrics, Instant::now());
class MetricsCollection {
 public:
  // How long advance() reads pages. It reads one page at least.
  static constexpr Duration kReadLimit = std::chrono::microseconds{500};

  MetricsCollection(Workers& workers, const ScopePolicy& policy, PageRegistry& pages)
      : workers_(workers), policy_(policy), pages_(pages) {}

  // Begins a collection of what the workers' pages have now.
  void begin();
  [[nodiscard]] bool is_under_way() const { return is_under_way_; }
  // Reads for `limit`. Returns whether all pages are read; then the collection is over.
  bool advance(Duration limit = kReadLimit);
  // Sets the fields of `metrics` that are about scopes to what the last collection has read, and
  // takes the durations from it.
  void add_to(Metrics& metrics, Instant now);

 private:
  struct Unread {
    std::shared_ptr<const Process> process;
    std::shared_ptr<WorkerPage> page;
  };
  void read(const Unread& next);
  void read_open_scopes(const Worker& worker, WorkerPage& page);

  Workers& workers_;
  const ScopePolicy& policy_;
  PageRegistry& pages_;
  bool is_under_way_ = false;
  std::deque<Unread> unread_;
  std::size_t open_scopes_ = 0;
  Instant oldest_ = Instant::never();
  Instant deadline_ = Instant::never();
  std::map<std::string, ScopeDurationCounts> durations_;  // by label value
  LoopThread loop_thread_;
};

}  // namespace filetimer
