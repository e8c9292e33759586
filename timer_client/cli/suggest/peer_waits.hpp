// Scopes of healthy workers that were open when another worker of their job expired. Most of them
// end only because the expired worker is killed, so their durations tell the timeout of that worker
// and not how long the work takes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {

// The workers of one host that expired together.
struct ExpiredTogether {
  std::string incident;
  std::set<std::int64_t> pids;
  std::set<std::string, std::less<>> jobs;
  // One of these workers left its scope after all. That worker was slow, and the others will wait
  // for it again.
  bool was_released = false;
};

// Takes records in the order of the log.
class PeerWaits {
 public:
  // Waits beyond these limits are not remembered, so their durations count.
  static constexpr std::size_t kMaxWaits = std::size_t{1} << 17;
  static constexpr std::size_t kMaxWaitsOfWorker = 1024;  // as many scopes as a server allows
  static constexpr std::size_t kMaxMachines = std::size_t{1} << 16;
  static constexpr std::size_t kMaxExpired = std::size_t{1} << 16;  // in one incident

  // Returns the expired workers that this one belongs to; null: the record names no incident.
  std::shared_ptr<ExpiredTogether> take_expired(const Record& expired);
  // Remembers the open scopes of the workers of the same jobs that are not expired themselves.
  void take_incident(const Record& incident);
  // Forgets a scope that its worker did not leave: it has no duration.
  void take_left_open(const Record& left_open);

  // For each scope of a worker that was open at a verdict: its name, and how long it had been open.
  using Elapsed = std::unordered_multimap<std::string, Duration>;
  // Returns the scopes of the worker of a `worker_ended` record, and forgets them.
  Elapsed waits_of(const Record& worker_ended);

 private:
  struct Wait {
    std::string scope;
    std::int64_t opened_ns = 0;
    Duration elapsed{};
    std::shared_ptr<const ExpiredTogether> expired;
  };

  template <class Predicate>
  void forget_if(const Record& of_worker, const Predicate& predicate);

  std::unordered_map<std::string, std::shared_ptr<ExpiredTogether>> latest_;  // by machine
  std::unordered_map<std::string, std::vector<Wait>> waits_;                  // by worker
  std::size_t wait_count_ = 0;
};

// Removes one scope from the statistics of a worker: the shortest one that took at least this long,
// by the histogram. Returns false if there is none.
bool leave_out_one(ScopeStatistics& statistics, Duration at_least);

}  // namespace filetimer::cli
