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

Duration first_of(const Suggestion& suggestion) {
  return suggestion.first_timeout.value_or(*suggestion.timeout);
}

// Returns what a name needs to outlast one that has `other`: for this reason alone no more than its
// timeout of today, unless `other` is longer.
Duration outlasting(Duration other, Duration today) {
  return std::min(rounded_up(times(other, kOrderFactor)), std::max(today, other));
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

void keep_order_of_today(std::vector<NamedSuggestion> names) {
  std::erase_if(names, [](const NamedSuggestion& name) {
    return !name.suggestion->timeout || name.today <= Duration::zero() || name.today == kForever;
  });
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.today < b.today; });
  std::string_view shorter;  // of the names before, the one with the longest suggestion
  Duration shorter_timeout{};
  Duration shorter_first{};
  for (auto group = names.begin(); group != names.end();) {
    const auto end = std::find_if(group, names.end(), [today = group->today](const auto& name) {
      return name.today != today;
    });
    for (auto name = group; name != end; ++name) {
      Suggestion& suggestion = *name->suggestion;
      const Duration timeout = outlasting(shorter_timeout, name->today);
      const Duration first = std::max(first_of(suggestion), outlasting(shorter_first, name->today));
      if (timeout > *suggestion.timeout) {
        suggestion.timeout = timeout;
        suggestion.why = timeout == rounded_up(times(shorter_timeout, kOrderFactor))
                             ? fmt::format("{:g} x {}", kOrderFactor, shorter)
                         : timeout == name->today ? std::string("as today")
                                                  : fmt::format("as {}", shorter);
      }
      suggestion.first_timeout = first > *suggestion.timeout ? std::optional(first) : std::nullopt;
    }
    for (; group != end; ++group) {
      if (*group->suggestion->timeout > shorter_timeout) {
        shorter = group->scope;
        shorter_timeout = *group->suggestion->timeout;
      }
      shorter_first = std::max(shorter_first, first_of(*group->suggestion));
    }
  }
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
