// SPDX-License-Identifier: MIT
#include "common/scope_statistics.hpp"

#include <algorithm>
#include <limits>

#include "common/page_reader.hpp"

namespace filetimer {
namespace {

template <class Number>
Number sum_of(Number a, Number b) {
  Number sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<Number>::max() : sum;
}

Duration duration_in(const std::atomic<std::int64_t>& field) {
  return Duration{std::max<std::int64_t>(field.load(kRelaxed), 0)};
}

}  // namespace

void ScopeStatistics::add(const ScopeStatistics& part) {
  count = sum_of(count, part.count);
  total = Duration{sum_of(total.count(), part.total.count())};
  longest = std::max(longest, part.longest);
  last = std::max(last, part.last);
  smallest_margin = std::min(smallest_margin, part.smallest_margin);
  longest_first = std::max(longest_first, part.longest_first);
  timeout = std::max(timeout, part.timeout);
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    histogram[i] = sum_of(histogram[i], part.histogram[i]);
    first_histogram[i] = sum_of(first_histogram[i], part.first_histogram[i]);
  }
}

void ScopeStatistics::add(const SlotStatistics& entry) {
  ScopeStatistics part;
  part.count = entry.count.load(kRelaxed);
  part.total = duration_in(entry.total_ns);
  part.longest = duration_in(entry.longest_ns);
  part.last = duration_in(entry.last_ns);
  part.longest_first = duration_in(entry.first_ns);
  part.timeout = duration_in(entry.timeout_ns);
  // The limit can be negated; the least number cannot.
  part.smallest_margin = std::max(Duration{entry.smallest_margin_ns.load(kRelaxed)}, -kForever);
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    part.histogram[i] = entry.histogram[i].load(kRelaxed);
  }
  if (part.count > 0) {
    part.first_histogram[bucket_of(part.longest_first.count())] = 1;
  }
  add(part);
}

Duration ScopeStatistics::middle_of(std::size_t bucket) const {
  const std::int64_t begin = bucket_begin(bucket);
  // The last bucket has no upper end.
  const std::int64_t end =
      bucket + 1 < kHistogramBuckets ? bucket_begin(bucket + 1) : std::max(begin, longest.count());
  return std::min(Duration{begin + (end - begin) / 2}, longest);
}

Duration ScopeStatistics::longest_in_histogram() const {
  std::size_t bucket = kHistogramBuckets;
  while (bucket > 0 && histogram[bucket - 1] == 0) {
    --bucket;
  }
  if (bucket == 0) {
    return Duration::zero();
  }
  return bucket - 1 == bucket_of(longest.count()) ? longest : middle_of(bucket - 1);
}

Duration ScopeStatistics::quantile(double part) const {
  double all = 0;
  for (const std::uint64_t bucket : histogram) {
    all += static_cast<double>(bucket);
  }
  const double wanted = part * all;
  double before = 0;
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const auto bucket = static_cast<double>(histogram[i]);
    if (bucket > 0 && before + bucket >= wanted) {
      return middle_of(i);
    }
    before += bucket;
  }
  return Duration::zero();
}

void write_histogram(JsonWriter& json, std::string_view key, const Histogram& histogram) {
  json.begin_array(key);
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    if (histogram[i] != 0) {
      json.begin_array({}).element(bucket_begin(i)).element(histogram[i]).end_array();
    }
  }
  json.end_array();
}

void add_statistics(const PageLayout& page, StatisticsByName& sums) {
  const std::size_t count = statistics_in_use(page);
  for (std::size_t i = 0; i < count; ++i) {
    const SlotStatistics& entry = page.statistics(i);
    if (entry.count.load(kRelaxed) > 0) {
      sums[read_name(entry.name)].add(entry);
    }
  }
}

}  // namespace filetimer
