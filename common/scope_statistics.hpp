// Statistics of the scopes of one name, added up over threads and workers.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// The number of scopes in each bucket of bucket_of().
using Histogram = std::array<std::uint64_t, kHistogramBuckets>;

// Sums do not overflow: they stop at the largest number.
struct ScopeStatistics {
  std::uint64_t count = 0;
  Duration total{};
  Duration longest{};
  // The duration of the latest scope; of several threads, whose order is not known, the longest.
  Duration last{};
  Duration smallest_margin = kForever;  // kForever: no scope had a deadline
  // The longest of the durations that were the first in their threads.
  Duration longest_first{};
  // The timeout of the latest scope, as requested; of several threads, whose order is not known,
  // the longest; kForever: no deadline.
  Duration timeout{};
  Histogram histogram{};
  // Of these, the scopes that were the first of their names in their threads.
  Histogram first_histogram{};

  // Adds other statistics of the same name.
  void add(const ScopeStatistics& part);
  // Adds an entry of a page, whose values may be anything: negative durations count as 0.
  void add(const SlotStatistics& entry);

  // Returns the mean duration, or 0 without a scope.
  [[nodiscard]] Duration mean() const {
    return Duration{
        count == 0 ? 0
                   : static_cast<std::int64_t>(static_cast<std::uint64_t>(total.count()) / count)};
  }
  // Returns an estimate of a quantile, 0 < `part` < 1: the middle of its bucket. It is off by at
  // most a sixteenth; see bucket_of().
  [[nodiscard]] Duration quantile(double part) const;
  // Returns the longest duration in the histogram: `longest` if that is in the same bucket, else
  // the middle of the last bucket with a scope.
  [[nodiscard]] Duration longest_in_histogram() const;

 private:
  [[nodiscard]] Duration middle_of(std::size_t bucket) const;
};

// Writes the buckets that are not empty as an array of pairs: the least duration of the bucket in
// nanoseconds, and the number of scopes in it.
void write_histogram(JsonWriter& json, std::string_view key, const Histogram& histogram);

using StatisticsByName = std::map<std::string, ScopeStatistics>;

// Adds the entries of a page that count at least one scope.
void add_statistics(const PageLayout& page, StatisticsByName& sums);

}  // namespace filetimer
