// The timeout that the durations of past scopes suggest.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/cli/suggest/scope_history.hpp"

namespace filetimer::cli {

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
