// Statistics of the scopes of one name, added up over threads and workers.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// Sums do not overflow: they stop at the largest number.
struct ScopeStatistics {
  std::uint64_t count = 0;
  Duration total{};
  Duration longest{};
  // The duration of the latest scope; of several threads, whose order is not known, the longest.
  Duration last{};
  Duration smallest_margin = kForever;  // kForever: no scope had a deadline
  std::array<std::uint64_t, kHistogramBuckets> histogram{};

  // Adds other statistics of the same name.
  void add(const ScopeStatistics& part);
  // Adds an entry of a page, whose values may be anything: negative durations count as 0.
  void add(const SlotStatistics& entry);

  // Returns the mean duration, or 0 without a scope.
  [[nodiscard]] Duration mean() const;
  // Returns an estimate of a quantile, 0 < `part` < 1. It is off by at most the width of the
  // histogram's bucket, a factor of two.
  [[nodiscard]] Duration quantile(double part) const;
};

using StatisticsByName = std::map<std::string, ScopeStatistics>;

// Adds the entries of a page that count at least one scope.
void add_statistics(const PageLayout& page, StatisticsByName& sums);

}  // namespace filetimer
