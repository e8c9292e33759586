// SPDX-License-Identifier: MIT
#include "common/scope_statistics.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "common/scope_page.hpp"

using namespace filetimer;

namespace {

// The scopes of one name in one thread, one after the other.
using Scopes = std::vector<std::int64_t>;

Scopes drawn(std::mt19937& draw) {
  Scopes scopes(1 + draw() % 50);
  for (std::int64_t& scope : scopes) {
    scope = static_cast<std::int64_t>(1) << (draw() % 40);
    scope += static_cast<std::int64_t>(draw() % 1000);
  }
  return scopes;
}

// The entry of a page that a client writes for them. All have the timeout.
std::unique_ptr<SlotStatistics> entry_of(const Scopes& scopes, std::int64_t timeout) {
  auto entry = std::make_unique<SlotStatistics>();
  entry->smallest_margin_ns = timeout - *std::ranges::max_element(scopes);
  entry->timeout_ns = timeout;
  entry->first_ns = scopes.front();
  entry->last_ns = scopes.back();
  for (const std::int64_t scope : scopes) {
    ++entry->count;
    entry->total_ns += scope;
    entry->longest_ns = std::max(entry->longest_ns.load(), scope);
    ++entry->histogram[bucket_of(scope)];
  }
  return entry;
}

}  // namespace

TEST_CASE("the statistics of a name are those of all its scopes in all threads") {
  std::mt19937 draw(7);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    ScopeStatistics sums;
    Scopes all;
    ScopeStatistics expected;
    for (int thread = 0; thread < 1 + round % 4; ++thread) {
      const Scopes scopes = drawn(draw);
      const auto timeout = static_cast<std::int64_t>(draw());
      sums.add(*entry_of(scopes, timeout));
      all.insert(all.end(), scopes.begin(), scopes.end());
      const Duration longest{*std::ranges::max_element(scopes)};
      expected.last = std::max(expected.last, Duration{scopes.back()});
      expected.longest_first = std::max(expected.longest_first, Duration{scopes.front()});
      expected.timeout = std::max(expected.timeout, Duration{timeout});
      expected.smallest_margin = std::min(expected.smallest_margin, Duration{timeout} - longest);
      ++expected.first_histogram[bucket_of(scopes.front())];
    }
    std::ranges::sort(all);
    CHECK(sums.count == all.size());
    CHECK(sums.longest.count() == all.back());
    CHECK(sums.last == expected.last);
    CHECK(sums.longest_first == expected.longest_first);
    CHECK(sums.timeout == expected.timeout);
    CHECK(sums.smallest_margin == expected.smallest_margin);
    CHECK(sums.first_histogram == expected.first_histogram);
    std::int64_t total = 0;
    for (const std::int64_t scope : all) {
      total += scope;
      ++expected.histogram[bucket_of(scope)];
    }
    CHECK(sums.total.count() == total);
    CHECK(sums.histogram == expected.histogram);
    CHECK(sums.mean().count() == total / static_cast<std::int64_t>(all.size()));
    CHECK(sums.longest_in_histogram() == sums.longest);
    CHECK(sums.quantile(0.999) <= sums.longest);
    for (const double part : {0.001, 0.25, 0.5, 0.75, 0.999}) {
      const double rank = part * static_cast<double>(all.size());
      std::size_t at = 0;
      while (static_cast<double>(at + 1) < rank) {
        ++at;
      }
      CHECK(bucket_of(sums.quantile(part).count()) == bucket_of(all[at]));
    }
  }
}

TEST_CASE("sums stop at the largest number, and the last bucket at the longest duration") {
  auto entry = entry_of({5, 7}, 6);
  ScopeStatistics sums;
  for (int i = 0; i < 3; ++i) {
    entry->count = ~std::uint64_t{0} - 1;
    entry->total_ns = INT64_MAX - 1;
    entry->longest_ns = -4;
    sums.add(*entry);
  }
  CHECK(sums.count == ~std::uint64_t{0});
  CHECK(sums.total.count() == INT64_MAX);
  CHECK(sums.longest.count() == 0);
  CHECK(sums.smallest_margin.count() == -1);
  const ScopeStatistics none;
  CHECK(none.mean().count() == 0);
  CHECK(none.quantile(0.5).count() == 0);
  CHECK(none.longest_in_histogram().count() == 0);
  constexpr std::int64_t kDay = 86'400'000'000'000;
  ScopeStatistics of_a_day;
  of_a_day.add(*entry_of({kDay}, kDay));
  const std::int64_t begin = bucket_begin(kHistogramBuckets - 1);
  CHECK(of_a_day.quantile(0.5).count() == begin + (kDay - begin) / 2);
}

TEST_CASE(
    "each duration is in the bucket between whose ends it is, near its middle from 512 ns on") {
  for (std::size_t bucket = 0; bucket < kHistogramBuckets; ++bucket) {
    const std::int64_t half = (bucket_begin(bucket + 1) - bucket_begin(bucket)) / 2;
    CHECK(bucket_of(bucket_begin(bucket)) == bucket);
    CHECK(bucket_of(bucket_begin(bucket + 1) - 1) == bucket);
    CHECK((bucket < 8 || bucket + 1 == kHistogramBuckets || half * 10 <= bucket_begin(bucket)));
  }
  CHECK(bucket_of(-1) == 0);
  CHECK(bucket_begin(kHistogramBuckets - 1) > 65'000'000'000'000);
}
