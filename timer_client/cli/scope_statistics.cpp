// SPDX-License-Identifier: MIT
#include "timer_client/cli/scope_statistics.hpp"

#include <algorithm>
#include <cmath>

namespace filetimer::cli {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

template <class Number>
void add_up(Number& sum, Number part) {
  if (__builtin_add_overflow(sum, part, &sum)) {
    sum = std::numeric_limits<Number>::max();
  }
}

std::int64_t duration_in(const std::atomic<std::int64_t>& field) {
  return std::max<std::int64_t>(field.load(kRelaxed), 0);
}

}  // namespace

void ScopeStatistics::add(const SlotStatistics& part) {
  add_up(count_, part.count.load(kRelaxed));
  add_up(total_ns_, duration_in(part.total_ns));
  last_ns_ = std::max(last_ns_, duration_in(part.last_ns));
  longest_ns_ = std::max(longest_ns_, duration_in(part.longest_ns));
  constexpr std::int64_t kLowest = -std::numeric_limits<std::int64_t>::max();  // can be negated
  smallest_margin_ns_ =
      std::min(smallest_margin_ns_, std::max(part.smallest_margin_ns.load(kRelaxed), kLowest));
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    add_up(histogram_[i], std::uint64_t{part.histogram[i].load(kRelaxed)});
  }
}

Duration ScopeStatistics::mean() const {
  return Duration{
      count_ == 0 ? 0 : static_cast<std::int64_t>(static_cast<std::uint64_t>(total_ns_) / count_)};
}

std::optional<Duration> ScopeStatistics::smallest_margin() const {
  if (smallest_margin_ns_ == std::numeric_limits<std::int64_t>::max()) {
    return std::nullopt;
  }
  return Duration{smallest_margin_ns_};
}

Duration ScopeStatistics::quantile(double part) const {
  double all = 0;
  for (const std::uint64_t bucket : histogram_) {
    all += static_cast<double>(bucket);
  }
  const double wanted = part * all;
  const auto longest = static_cast<double>(longest_ns_);
  double before = 0;
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const auto bucket = static_cast<double>(histogram_[i]);
    if (bucket > 0 && before + bucket >= wanted) {
      // As if the durations in the bucket were spread evenly. The last one has no upper end.
      const double low = i == 0 ? 0 : std::ldexp(1.0, static_cast<int>(i));
      const double high = i + 1 < kHistogramBuckets ? std::ldexp(1.0, static_cast<int>(i) + 1)
                                                    : std::max(low, longest);
      const double estimate = low + (high - low) * (wanted - before) / bucket;
      // 2^63 does not fit: no duration of a real scope comes near.
      return Duration{static_cast<std::int64_t>(std::min({estimate, longest, 9e18}))};
    }
    before += bucket;
  }
  return Duration::zero();
}

}  // namespace filetimer::cli
