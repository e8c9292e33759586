// Counts by scope name, of a limited number of names, and counts of durations.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "common/clock.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer {

// The most scope names that have series of their own. All further names share one label value: a
// worker that makes up names must not fill the memory of the server or of Prometheus.
inline constexpr std::size_t kMaxMetricScopes = 64;
inline constexpr const char* kOtherScopes = "(other)";

// Values by scope name, of at most kMaxMetricScopes names and kOtherScopes. A name keeps its label
// value for good, so that no counter decreases.
template <class Value>
class ByScope {
 public:
  using Values = std::map<std::string, Value>;

  // Returns the label value of a name, which is valid UTF-8. The first names get their own.
  std::string label_of(const std::string& name) {
    std::string label = name;
    // Prometheus reads no NUL.
    for (std::size_t at = label.find('\0'); at != label.npos; at = label.find('\0', at)) {
      label.replace(at, 1, "\uFFFD");
    }
    if (!values_.contains(label) &&
        values_.size() - values_.count(kOtherScopes) >= kMaxMetricScopes) {
      label = kOtherScopes;
    }
    values_.try_emplace(label);
    return label;
  }
  Value& operator[](const std::string& name) { return values_.at(label_of(name)); }

  // Returns the values by label value.
  [[nodiscard]] const Values& values() const { return values_; }

 private:
  Values values_;
};

using CountsByScope = ByScope<std::uint64_t>;

// Returns the sum, or the largest number if the sum does not fit: statistics come from workers, and
// may be anything.
constexpr std::uint64_t limited_sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

// Counts of durations, by upper bounds in ascending order.
template <const auto& kBounds>
struct DurationCounts {
  // By bound: the durations up to it, and above the bound before. The last has all that are longer.
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  double total_s = 0;

  void add(Duration duration) {
    const auto bound = std::ranges::lower_bound(kBounds, duration);
    ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
    total_s += std::chrono::duration<double>(duration).count();
  }
};

namespace metric_bounds {
using std::chrono::milliseconds;
using std::chrono::seconds;
// From the deadline of a scope to the verdict.
inline constexpr std::array<Duration, 13> kLateness{
    milliseconds{1},  milliseconds{2},   milliseconds{5},   milliseconds{10},  milliseconds{20},
    milliseconds{50}, milliseconds{100}, milliseconds{200}, milliseconds{500}, seconds{1},
    seconds{2},       seconds{5},        seconds{10}};
// Of the durations of scopes.
inline constexpr std::array<Duration, 21> kScope{
    milliseconds{1},    milliseconds{2} + std::chrono::microseconds{500},
    milliseconds{5},    milliseconds{10},
    milliseconds{25},   milliseconds{50},
    milliseconds{100},  milliseconds{250},
    milliseconds{500},  seconds{1},
    milliseconds{2500}, seconds{5},
    seconds{10},        seconds{25},
    seconds{50},        seconds{100},
    seconds{250},       seconds{500},
    seconds{1000},      seconds{2500},
    seconds{3600}};
}  // namespace metric_bounds

using LatenessCounts = DurationCounts<metric_bounds::kLateness>;
using ScopeDurationCounts = DurationCounts<metric_bounds::kScope>;

// Adds the durations of scopes. A bucket of `statistics` is counted under the first bound that no
// duration in it exceeds: a duration that is less than an eighth below a bound may count under the
// next one.
void add_durations(ScopeDurationCounts& sum, const ScopeStatistics& statistics);

}  // namespace filetimer
