// For tests of code that compares ranks: the scopes of a synchronous training job with computed
// times. All ranks begin a step together, compute in `forward` and wait for each other in
// `allreduce`, which they leave together.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "common/scope_page.hpp"

namespace filetimer::testing {

// Adds scopes to the statistics of a page, which has none of their names, as a worker does when it
// releases them.
inline void leave_scopes(const PageLayout& page, const EndedScopesByName& ended) {
  for (const auto& [name, scopes] : ended) {
    SlotStatistics& entry = page.statistics(page.header().statistics++);
    write_name(entry.name, name);
    for (const EndedReading& scope : scopes) {
      EndedScope& place = entry.ended[entry.count % kEndedScopes];
      place.ended = scope.ended.ns;
      place.took_ns = scope.took.count();
      entry.first_ns = entry.count == 0 ? scope.took.count() : entry.first_ns.load();
      entry.last_ns = scope.took.count();
      entry.longest_ns = std::max(entry.longest_ns.load(), scope.took.count());
      entry.total_ns += scope.took.count();
      ++entry.histogram[bucket_of(scope.took.count())];
      ++entry.count;
    }
  }
}

struct SimulatedJob {
  std::size_t ranks = 8;
  int steps = 15;
  Duration forward = std::chrono::milliseconds{100};
  Duration exchange = std::chrono::milliseconds{20};  // of the last rank in `allreduce`
  double noise = 0.02;             // standard deviation of a computation, as a part of it
  std::vector<double> slowness{};  // by rank, how many times `forward`; missing: 1
  std::uint64_t seed = 1;
  Instant begin{std::int64_t{1'000'000'000'000}};

  // Returns the scopes of each rank. The same seed gives the same times with every library.
  [[nodiscard]] std::vector<EndedScopesByName> run() const {
    std::mt19937_64 random(seed);
    const auto normal = [&random] {
      double sum = -6;
      for (int i = 0; i < 12; ++i) {
        sum += static_cast<double>(random() >> 11) / 9007199254740992.0;  // 2^53
      }
      return sum;
    };
    const auto part_of = [](Duration duration, double part) {
      return Duration{static_cast<std::int64_t>(static_cast<double>(duration.count()) * part)};
    };
    std::vector<EndedScopesByName> ended(ranks);
    Instant step = begin;
    for (int i = 0; i < steps; ++i) {
      std::vector<Instant> computed;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const double slow = rank < slowness.size() ? slowness[rank] : 1;
        const Duration took = part_of(forward, slow * std::exp(noise * normal()));
        computed.push_back(step + took);
        ended[rank]["forward"].push_back({computed.back(), took});
      }
      step = *std::ranges::max_element(computed) + exchange;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        // The ranks are woken one after the other.
        const Instant left = step + Duration{static_cast<std::int64_t>(random() % 200'000)};
        ended[rank]["allreduce"].push_back({left, left - computed[rank]});
      }
      step = step + std::chrono::milliseconds{1};
    }
    return ended;
  }
};

}  // namespace filetimer::testing
