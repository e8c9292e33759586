// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/suggestion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/limits.hpp"

namespace filetimer::cli {
namespace {

// How much longer than those that it waits for a name's timeout is.
constexpr double kOrderFactor = 1.5;

Duration times(Duration duration, double factor) {
  const double ns = static_cast<double>(duration.count()) * factor;
  return ns >= static_cast<double>(kMaxTimeout.count()) ? kMaxTimeout : Duration{std::llround(ns)};
}

// Ranks outlast the one that they wait for: raises the suggestion of a name with a longer timeout
// today than other names to kOrderFactor times the longest of theirs, but not above its own timeout
// of today. Names without a deadline, a known timeout or a suggestion take no part.
void raise_above_shorter(std::vector<SuggestedScope>& scopes) {
  std::vector<SuggestedScope*> ordered;
  for (SuggestedScope& scope : scopes) {
    if (scope.suggestion.timeout && scope.today() > Duration::zero() && scope.today() != kForever) {
      ordered.push_back(&scope);
    }
  }
  std::ranges::stable_sort(ordered, {}, &SuggestedScope::today);
  for (SuggestedScope* const scope : ordered) {
    Suggestion& suggestion = scope->suggestion;
    const auto end = std::ranges::lower_bound(ordered, scope->today(), {}, &SuggestedScope::today);
    const auto longest = std::ranges::max_element(
        ordered.begin(), end, {}, [](const auto* each) { return *each->suggestion.timeout; });
    const Duration wanted = longest == end
                                ? Duration{}
                                : rounded_up(times(*(*longest)->suggestion.timeout, kOrderFactor));
    if (const Duration raised = std::min(wanted, scope->today()); raised > *suggestion.timeout) {
      suggestion.timeout = raised;
      suggestion.why = raised == wanted ? fmt::format("{:g} x {}", kOrderFactor, (*longest)->scope)
                                        : std::string("as today");
    }
    if (suggestion.first_timeout <= suggestion.timeout) {
      suggestion.first_timeout.reset();
    }
  }
}

}  // namespace

Durations durations_of(const ScopeStatistics& statistics) {
  Durations durations;
  ScopeStatistics rest;
  rest.longest = statistics.longest;
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const std::uint64_t first = std::min(statistics.first_histogram[i], statistics.histogram[i]);
    rest.histogram[i] = statistics.histogram[i] - first;
    durations.count += rest.histogram[i];
    durations.firsts += first;
  }
  durations.median = rest.quantile(0.5);
  durations.p999 = rest.quantile(0.999);
  durations.longest = rest.longest_in_histogram();
  durations.longest_first = statistics.longest_first;
  return durations;
}

Suggestion suggestion_for(const Durations& durations, const SuggestionRules& rules) {
  Suggestion suggestion;
  if (durations.count < kMinSamples) {
    suggestion.why = fmt::format("too few samples ({} of {})", durations.count, kMinSamples);
    return suggestion;
  }
  const Duration by_percentile = times(durations.p999, rules.factor);
  const Duration by_longest = times(durations.longest, kLongestFactor);
  Duration timeout = rules.floor;
  suggestion.why = "the floor";
  if (by_percentile > timeout) {
    timeout = by_percentile;
    suggestion.why = fmt::format("{:g} x P99.9", rules.factor);
  }
  if (by_longest > timeout) {
    timeout = by_longest;
    suggestion.why = fmt::format("{:g} x LONGEST", kLongestFactor);
  }
  suggestion.timeout = rounded_up(timeout);
  const Duration first = rounded_up(times(durations.longest_first, rules.factor));
  if (first > *suggestion.timeout) {
    suggestion.first_timeout = first;
  }
  return suggestion;
}

std::vector<SuggestedScope> suggestions_for(const ScopeHistories& histories,
                                            const SuggestionRules& rules) {
  std::vector<SuggestedScope> scopes;
  for (const auto& [name, history] : histories.by_name()) {
    const Durations durations = durations_of(history.statistics);
    scopes.push_back({name, &history, durations, suggestion_for(durations, rules)});
  }
  raise_above_shorter(scopes);
  return scopes;
}

Duration rounded_up(Duration duration) {
  Duration unit = std::chrono::microseconds{1};
  while (duration / unit >= 100) {
    unit *= 10;
  }
  const std::int64_t units = (duration + unit - Duration{1}) / unit;
  return std::min(units * unit, kMaxTimeout);
}

}  // namespace filetimer::cli
