// The scopes in which healthy workers waited for one that expired. They ended because that worker
// was killed, so their durations tell its timeout and not how long their own work takes.
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
  // One of them left its scope after all: it was slow, and those that waited for it will again.
  bool was_released = false;
};

// Takes records in the order of the log.
class PeerWaits {
 public:
  // Of records beyond these limits nothing is remembered: their durations count.
  static constexpr std::size_t kMaxWaits = std::size_t{1} << 17;
  static constexpr std::size_t kMaxMachines = std::size_t{1} << 16;
  static constexpr std::size_t kMaxExpired = std::size_t{1} << 16;  // in one incident

  // Returns the expired workers that this one belongs to; null: the record names no incident.
  std::shared_ptr<ExpiredTogether> take_expired(const Record& expired);
  // Remembers the open scopes of the workers of the same jobs that are not expired themselves.
  void take_incident(const Record& incident);
  // Forgets a scope that its worker did not leave: it has no duration.
  void take_left_open(const Record& left_open);

  // How long each of a worker's scopes had waited at the verdict, by name.
  using Elapsed = std::unordered_multimap<std::string, Duration>;
  // Returns those of the worker of a `worker_ended` record, and forgets them.
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

// Leaves one scope out of the statistics of a worker: the shortest that took at least this long, as
// far as the histogram tells. False if there is none.
bool leave_out_one(ScopeStatistics& statistics, Duration at_least);

}  // namespace filetimer::cli
