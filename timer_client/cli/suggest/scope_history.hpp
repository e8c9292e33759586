// The scopes of each name as logs and pages have them: how long they took, and which of them missed
// their deadlines.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {

// How many records tell of a missed deadline in the scopes of a name.
struct MissedDeadlines {
  std::uint64_t expired = 0;        // verdicts
  std::uint64_t killed = 0;         // outcomes: the worker was killed, or is unkillable
  std::uint64_t spared = 0;         // outcomes: the worker was spared, as in a dry run
  std::uint64_t released_late = 0;  // releases that cancelled a kill
  Duration latest{};                // the longest time from a deadline to such a release
  std::uint64_t warned = 0;         // soft deadlines
};

struct ScopeHistory {
  ScopeStatistics statistics;  // `timeout`: of the worker that ended last, or of those alive
  MissedDeadlines missed;
};

// Collects histories from records, in the order of the log, and from pages.
class ScopeHistories {
 public:
  // Further names have no history: a program may make up a new name for each scope. They are
  // counted by omitted().
  static constexpr std::size_t kMaxNames = 4096;
  // So many jobs are remembered with the time of their last expiry.
  static constexpr std::size_t kMaxJobs = std::size_t{1} << 16;
  // Workers that end this soon after an expiry of their job waited for the worker that expired: the
  // longest scope of each name in them lasted for that worker's timeout, and is left out.
  static constexpr std::int64_t kWaitsEndUs = 120'000'000;

  // Takes a record of any event.
  void take(const Record& record);
  // Adds the statistics of workers that are alive, after the last record.
  void add(const StatisticsByName& statistics);

  [[nodiscard]] const std::map<std::string, ScopeHistory, std::less<>>& by_name() const {
    return by_name_;
  }
  // Returns the number of workers whose `worker_ended` records were taken.
  [[nodiscard]] std::uint64_t ended_workers() const { return ended_workers_; }
  // Returns of how many of them the longest scopes are left out.
  [[nodiscard]] std::uint64_t waiting_workers() const { return waiting_workers_; }
  // Returns how often there was no room for a name.
  [[nodiscard]] std::uint64_t omitted() const { return omitted_; }

 private:
  void take_ended_worker(const Record& ended);
  void add(const std::string& name, const ScopeStatistics& part);
  ScopeHistory* history_of(std::string_view name);

  std::map<std::string, ScopeHistory, std::less<>> by_name_;
  std::unordered_map<std::string, std::int64_t> last_expiry_us_;  // by job
  std::uint64_t ended_workers_ = 0;
  std::uint64_t waiting_workers_ = 0;
  std::uint64_t omitted_ = 0;
};

}  // namespace filetimer::cli
