// How long the scopes of one name took, added up over threads and workers.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer::cli {

class ScopeStatistics {
 public:
  // Any values: sums stop at the largest number, negative durations count as none.
  void add(const SlotStatistics& part);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] Duration total() const { return Duration{total_ns_}; }
  [[nodiscard]] Duration mean() const;
  [[nodiscard]] Duration longest() const { return Duration{longest_ns_}; }
  // The latest scope's; of several threads, which keep no order between them, the longest of these.
  [[nodiscard]] Duration last() const { return Duration{last_ns_}; }
  // Nothing when no scope had a deadline.
  [[nodiscard]] std::optional<Duration> smallest_margin() const;
  // An estimate, right to within the histogram's bucket: at most a factor of two. 0 < `part` < 1.
  [[nodiscard]] Duration quantile(double part) const;
  [[nodiscard]] const std::array<std::uint64_t, kHistogramBuckets>& histogram() const {
    return histogram_;
  }

 private:
  std::uint64_t count_ = 0;
  std::int64_t total_ns_ = 0;
  std::int64_t last_ns_ = 0;
  std::int64_t longest_ns_ = 0;
  std::int64_t smallest_margin_ns_ = std::numeric_limits<std::int64_t>::max();
  std::array<std::uint64_t, kHistogramBuckets> histogram_{};
};

using StatisticsByName = std::map<std::string, ScopeStatistics>;

}  // namespace filetimer::cli
