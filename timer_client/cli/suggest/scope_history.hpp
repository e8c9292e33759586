// The scopes of each name as logs and pages have them: how long they took, and which of them missed
// their deadlines.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {

// A number of events that came some time after another one: the least and the longest of the times.
struct Delays {
  std::uint64_t count = 0;
  Duration least = kForever;
  Duration longest{};

  void add(Duration delay);
};

// The scopes of a name that missed a deadline.
struct MissedDeadlines {
  std::uint64_t expired = 0;     // verdicts; each is in at most one of the next two
  std::uint64_t killed = 0;      // of them, those whose worker was killed, or is unkillable
  std::uint64_t spared = 0;      // of them, those whose worker was spared
  std::uint64_t in_dry_run = 0;  // of the spared ones, those that a dry run spared
  Delays released_late;          // of them, those that were released; from the deadline
  std::uint64_t warned = 0;      // soft deadlines

  [[nodiscard]] bool is_empty() const { return expired == 0 && warned == 0; }
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
  // How many expiries without an outcome, and warnings, are remembered at most: the latest ones.
  static constexpr std::size_t kMaxRemembered = std::size_t{1} << 16;
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
  // An expiry, and what has come of it so far, or a warning.
  struct Missed {
    std::string key;  // by host and id
    ScopeHistory* history;
    bool is_warning = false;
    bool was_released = false;
    std::string job = {};
  };
  using MissedList = std::list<Missed>;

  ScopeHistory* history_of(std::string_view name);
  static void add(ScopeHistory& history, const ScopeStatistics& part);
  void take_ended_worker(const Record& ended);
  void take_missed(const Record& missed, bool is_warning);
  void take_outcome(const Record& killed);
  void take_release(const Record& released);
  void forget(MissedList::iterator missed);

  std::map<std::string, ScopeHistory, std::less<>> by_name_;
  // The oldest first. A release or an outcome counts only if its expiry was taken.
  MissedList remembered_;
  std::unordered_map<std::string_view, MissedList::iterator> by_key_;
  std::unordered_map<std::string, std::int64_t> last_expiry_us_;  // by job
  std::uint64_t ended_workers_ = 0;
  std::uint64_t waiting_workers_ = 0;
  std::uint64_t omitted_ = 0;
};

}  // namespace filetimer::cli
