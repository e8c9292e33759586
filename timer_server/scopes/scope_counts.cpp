// SPDX-License-Identifier: MIT
#include "timer_server/scopes/scope_counts.hpp"

#include "common/duration_buckets.hpp"

namespace filetimer {

void add_durations(ScopeDurationCounts& sum, const ScopeStatistics& statistics) {
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    if (statistics.histogram[i] != 0) {
      // The last bucket has no end. Its durations are counted as longer than every bound.
      const bool is_last = i + 1 == kHistogramBuckets;
      const Duration most = is_last ? kForever : Duration{bucket_begin(i + 1) - 1};
      const auto bound = std::ranges::lower_bound(metric_bounds::kScope, most);
      std::uint64_t& count =
          sum.counts[static_cast<std::size_t>(bound - metric_bounds::kScope.begin())];
      count = limited_sum(count, statistics.histogram[i]);
    }
  }
  sum.total_s += std::chrono::duration<double>(statistics.total).count();
}

}  // namespace filetimer
