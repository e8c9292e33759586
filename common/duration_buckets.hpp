// The buckets of a histogram of durations: 8 of 64 ns, then 8 of equal width for each power of two.
// A bucket from 512 ns on is at most an eighth as wide as it begins, so a duration that is taken
// for the middle of its bucket is off by at most 6.25 %.
// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace filetimer {

inline constexpr std::size_t kHistogramBuckets = 304;  // the last one has all from 66,000 s on

// Returns the number of the bucket of a duration in nanoseconds; a negative one counts as 0.
constexpr std::size_t bucket_of(std::int64_t duration_ns) {
  constexpr int kFirstPower = 9;  // 512 ns: below it the buckets are 64 ns wide
  const auto ns = static_cast<std::uint64_t>(duration_ns > 0 ? duration_ns : 0);
  const int power = static_cast<int>(std::bit_width(ns >> kFirstPower));  // 0: below 512 ns
  // Of the larger ones the three bits below the highest one tell the eighth.
  const std::size_t bucket =
      power == 0 ? ns >> (kFirstPower - 3)
                 : static_cast<std::size_t>(power) * 8 + ((ns >> (kFirstPower + power - 4)) & 7);
  return bucket < kHistogramBuckets ? bucket : kHistogramBuckets - 1;
}

// Returns the least duration of a bucket, in nanoseconds. Returns the largest number for
// kHistogramBuckets: the last bucket has no end.
constexpr std::int64_t bucket_begin(std::size_t bucket) {
  if (bucket >= kHistogramBuckets) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const auto eighth = static_cast<std::int64_t>(bucket % 8);
  const std::size_t power = bucket / 8;
  return power == 0 ? eighth * 64 : (8 + eighth) << (power + 5);
}

}  // namespace filetimer
