// SPDX-License-Identifier: MIT
#include "common/duration_buckets.hpp"

#include <doctest/doctest.h>

using namespace filetimer;

TEST_CASE("each duration is in the bucket between whose ends it is") {
  for (std::size_t bucket = 0; bucket < kHistogramBuckets; ++bucket) {
    CHECK(bucket_of(bucket_begin(bucket)) == bucket);
    CHECK(bucket_of(bucket_begin(bucket + 1) - 1) == bucket);
  }
  CHECK(bucket_of(-1) == 0);
  CHECK(bucket_begin(kHistogramBuckets - 1) > 65'000'000'000'000);
}

TEST_CASE("the middle of a bucket from 512 ns on is off by at most a tenth") {
  for (std::size_t bucket = 8; bucket + 1 < kHistogramBuckets; ++bucket) {
    const std::int64_t half = (bucket_begin(bucket + 1) - bucket_begin(bucket)) / 2;
    CHECK(half * 10 <= bucket_begin(bucket));
  }
}
