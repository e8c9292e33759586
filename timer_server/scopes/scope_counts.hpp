// Counts by scope name, of a limited number of names, and counts of late verdicts.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.hpp"

namespace filetimer {

// The most scope names that have series of their own. All further names share one label value: a
// worker that makes up names must not fill the memory of the server or of Prometheus.
inline constexpr std::size_t kMaxMetricScopes = 64;
inline constexpr const char* kOtherScopes = "(other)";

// Counts by scope name, of at most kMaxMetricScopes names and kOtherScopes. A name keeps its label
// value for good, so that no counter decreases.
class CountsByScope {
 public:
  using Values = std::map<std::string, std::uint64_t>;

  // Returns the count of a name, which is valid UTF-8. The first names get label values of their
  // own.
  std::uint64_t& operator[](const std::string& name) {
    std::string label = name;
    // Prometheus reads no NUL.
    for (std::size_t at = label.find('\0'); at != label.npos; at = label.find('\0', at)) {
      label.replace(at, 1, "\uFFFD");
    }
    if (!values_.contains(label) &&
        values_.size() - values_.count(kOtherScopes) >= kMaxMetricScopes) {
      label = kOtherScopes;
    }
    return values_[label];
  }

  // Returns the counts by label value.
  [[nodiscard]] const Values& values() const { return values_; }

 private:
  Values values_;
};

namespace metric_bounds {
using std::chrono::milliseconds;
using std::chrono::seconds;
// From the deadline of a scope to the verdict.
inline constexpr std::array<Duration, 13> kLateness{
    milliseconds{1},  milliseconds{2},   milliseconds{5},   milliseconds{10},  milliseconds{20},
    milliseconds{50}, milliseconds{100}, milliseconds{200}, milliseconds{500}, seconds{1},
    seconds{2},       seconds{5},        seconds{10}};
}  // namespace metric_bounds

// Counts of the times from a deadline to its verdict, by upper bound.
struct LatenessCounts {
  // By bound: the times up to it, and above the bound before. The last has all that are longer.
  std::array<std::uint64_t, metric_bounds::kLateness.size() + 1> counts{};
  double total_s = 0;

  void add(Duration late) {
    const auto bound = std::ranges::lower_bound(metric_bounds::kLateness, late);
    ++counts[static_cast<std::size_t>(bound - metric_bounds::kLateness.begin())];
    total_s += std::chrono::duration<double>(late).count();
  }
};

}  // namespace filetimer
