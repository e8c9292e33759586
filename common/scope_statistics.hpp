// How long the scopes of one name took, added up over threads and workers.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// Sums stop at the largest number.
struct ScopeStatistics {
  std::uint64_t count = 0;
  Duration total{};
  Duration longest{};
  // The latest scope's; of several threads, which keep no order between them, the longest of these.
  Duration last{};
  Duration smallest_margin = kForever;  // kForever: no scope had a deadline
  std::array<std::uint64_t, kHistogramBuckets> histogram{};

  void add(const ScopeStatistics& part);
  // Adds an entry with any values: negative durations count as none.
  void add(const SlotStatistics& entry);

  [[nodiscard]] Duration mean() const;
  // Returns an estimate, right to within the histogram's bucket: at most a factor of two.
  // 0 < `part` < 1.
  [[nodiscard]] Duration quantile(double part) const;
};

using StatisticsByName = std::map<std::string, ScopeStatistics>;

// Adds the entries of a page that count a scope at least.
void add_statistics(const PageLayout& page, StatisticsByName& sums);

}  // namespace filetimer
