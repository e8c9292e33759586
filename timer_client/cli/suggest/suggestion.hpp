// The scopes of each name as logs and pages have them (how long they took, and which of them missed
// their deadlines), and the timeout that the durations of past scopes suggest.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/cli/log/reader.hpp"

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
  // So many jobs are remembered with their last expiries.
  static constexpr std::size_t kMaxJobs = std::size_t{1} << 16;
  // Workers that end this soon after an expiry of their job waited for the worker that expired: the
  // longest scope of each name in them lasted for that worker's timeout, and is left out.
  static constexpr std::int64_t kWaitsEndUs = 120'000'000;

  // Takes a record of any event. With `is_counted` false, the record is in no count and no
  // duration: an expiry only marks the workers that waited for it.
  void take(const Record& record, bool is_counted = true);
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
  // Returns how often there was none in the record of an ended worker.
  [[nodiscard]] std::uint64_t unrecorded() const { return unrecorded_; }

 private:
  void take_ended_worker(const Record& ended);
  void add(const std::string& name, const ScopeStatistics& part);
  ScopeHistory* history_of(std::string_view name);

  std::map<std::string, ScopeHistory, std::less<>> by_name_;
  // By job, with the id, without those whose kill a release cancelled.
  std::unordered_map<std::string, std::set<std::pair<std::int64_t, std::string>>> expiries_us_;
  std::uint64_t ended_workers_ = 0;
  std::uint64_t waiting_workers_ = 0;
  std::uint64_t omitted_ = 0;
  std::uint64_t unrecorded_ = 0;
};

// --- suggestions ---

struct SuggestionRules {
  // The timeout is at least this many times the 99.9th percentile.
  double factor = 3;
  // No timeout is shorter: below it the machine's own pauses count.
  Duration floor = std::chrono::seconds{1};
};

// The timeout is at least this many times the longest duration, so that what has ended well would
// not have been killed. A higher factor of the rules counts for the percentile only: a single
// outlier does not make the timeout useless.
inline constexpr double kLongestFactor = 1.5;
// With fewer scopes the 99.9th percentile is not known well enough.
inline constexpr std::uint64_t kMinSamples = 100;

// How long the scopes of one name took, without the first of each thread: start-up and compilation
// take longer. A quantile is off by at most a sixteenth, and so is the longest duration if a first
// scope was longer.
struct Durations {
  std::uint64_t count = 0;
  Duration median{};
  Duration p999{};
  Duration longest{};
  std::uint64_t firsts = 0;
  Duration longest_first{};
};
Durations durations_of(const ScopeStatistics& statistics);

struct Suggestion {
  // None: there are fewer than kMinSamples scopes.
  std::optional<Duration> timeout;
  // None: the first scopes need no timeout of their own.
  std::optional<Duration> first_timeout;
  std::string why;  // "3 x P99.9", "1.5 x forward", "as today", "too few samples (12 of 100)"
};
// Returns timeouts of at most kMaxTimeout, rounded up to two significant digits.
Suggestion suggestion_for(const Durations& durations, const SuggestionRules& rules);

// Views the history.
struct SuggestedScope {
  std::string_view scope;
  const ScopeHistory* history = nullptr;
  Durations durations{};
  Suggestion suggestion{};

  // Returns the timeout that is in force; kForever: no deadline; 0: unknown.
  [[nodiscard]] Duration today() const { return history->statistics.timeout; }
};
// Returns the names in their order.
std::vector<SuggestedScope> suggestions_for(const ScopeHistories& histories,
                                            const SuggestionRules& rules);

// Returns the duration rounded up to two significant digits, and to a microsecond at least, the
// least unit of a timeout: 2.61 s is 2.7 s.
Duration rounded_up(Duration duration);

}  // namespace filetimer::cli
