// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/suggestion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/limits.hpp"

namespace filetimer::cli {
namespace {

constexpr Duration kMicrosecond = std::chrono::microseconds{1};

Duration times(Duration duration, double factor) {
  const double ns = static_cast<double>(duration.count()) * factor;
  return ns >= static_cast<double>(kMaxTimeout.count()) ? kMaxTimeout : Duration{std::llround(ns)};
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

std::vector<std::string> keep_order_of_today(std::vector<NamedSuggestion> names) {
  std::erase_if(names, [](const NamedSuggestion& name) {
    return !name.suggestion->timeout || name.today <= Duration::zero() || name.today == kForever;
  });
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.today < b.today; });
  std::vector<std::string> lost;
  const NamedSuggestion* longest = nullptr;  // suggestion of the names so far
  const NamedSuggestion* below = nullptr;    // likewise of those with a shorter timeout today
  for (std::size_t i = 0; i < names.size(); ++i) {
    const NamedSuggestion& name = names[i];
    Suggestion& suggestion = *name.suggestion;
    below = i > 0 && names[i - 1].today < name.today ? longest : below;
    if (below != nullptr) {
      const Duration other = *below->suggestion->timeout;
      const Duration wanted = rounded_up(times(other, kOrderFactor));
      if (const Duration raised = std::min(wanted, name.today); raised > *suggestion.timeout) {
        suggestion.timeout = raised;
        suggestion.why = raised == wanted ? fmt::format("{:g} x {}", kOrderFactor, below->scope)
                                          : std::string("as today");
      }
      if (suggestion.first_timeout <= suggestion.timeout) {
        suggestion.first_timeout.reset();
      }
      if (*suggestion.timeout <= other) {
        lost.push_back(fmt::format("{} >= {}", below->scope, name.scope));
      }
    }
    if (longest == nullptr || *suggestion.timeout > *longest->suggestion->timeout) {
      longest = &name;
    }
  }
  return lost;
}

Duration rounded_up(Duration duration) {
  Duration unit{1};
  while (duration / unit >= 100) {
    unit *= 10;
  }
  const std::int64_t units = (duration + unit - Duration{1}) / unit;
  return std::min(units * std::max(unit, Duration{1}), kMaxTimeout);
}

std::string short_duration_text(Duration duration) {
  constexpr std::pair<Duration, const char*> kUnits[] = {
      {std::chrono::seconds{1}, "s"}, {std::chrono::milliseconds{1}, "ms"}, {kMicrosecond, "us"}};
  for (const auto& [unit, name] : kUnits) {
    if (duration >= unit) {
      const double value =
          static_cast<double>(duration.count()) / static_cast<double>(unit.count());
      // Enough digits for every duration that rounded_up() returns and for a timeout of years.
      return fmt::format("{:.10g}{}", value, name);
    }
  }
  return "1us";
}

}  // namespace filetimer::cli
