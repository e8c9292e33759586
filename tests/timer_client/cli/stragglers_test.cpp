// Which ranks are named as stragglers, for times that a test computes.
// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/stragglers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/simulated_job.hpp"

using namespace filetimer;
using namespace std::chrono_literals;
using filetimer::testing::SimulatedJob;

namespace {

struct Searched {
  std::vector<Straggler> stragglers;
  std::size_t compared_ranks = 0;

  [[nodiscard]] std::vector<Straggler> of(const std::string& scope) const {
    std::vector<Straggler> found;
    std::ranges::copy_if(stragglers, std::back_inserter(found),
                         [&](const Straggler& straggler) { return straggler.scope == scope; });
    return found;
  }
};

Searched compare_ranks(const std::vector<EndedScopesByName>& ranks) {
  std::vector<RankScopes> scopes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    scopes.push_back({rank, "job", ranks[rank]});
  }
  const StragglerSearch search = search_stragglers(scopes);
  return {search.stragglers, search.compared.size()};
}

// Scopes of one name, back to back; `took` is repeated.
std::vector<EndedReading> back_to_back(std::vector<Duration> took, Instant begin = {1'000'000},
                                       std::size_t count = 15) {
  std::vector<EndedReading> ended;
  for (std::size_t i = 0; i < count; ++i) {
    const Duration duration = took[i % took.size()];
    begin = begin + duration;
    ended.push_back({begin, duration});
  }
  return ended;
}

}  // namespace

TEST_CASE("Eight ranks that differ by noise have no straggler") {
  for (const double noise : {0.0, 0.01, 0.05, 0.1, 0.3}) {
    CAPTURE(noise);
    std::size_t named = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
      named += compare_ranks(SimulatedJob{.noise = noise, .seed = seed}.run()).stragglers.size();
    }
    CHECK(named == 0);
  }
}

TEST_CASE(
    "Noise hides no rank that is 1.3 times slower, and names none that is less than 1.2 times") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    const Searched found =
        compare_ranks(SimulatedJob{.noise = 0.05, .slowness = {1, 1, 1.3}, .seed = seed}.run());
    CHECK(found.of("forward").size() == 1);
    CHECK(std::ranges::all_of(found.stragglers,
                              [](const Straggler& straggler) { return straggler.rank == 2; }));
  }
  CHECK(compare_ranks(SimulatedJob{.slowness = {1.25}}.run()).of("forward").size() == 1);
  CHECK(compare_ranks(SimulatedJob{.slowness = {1.15}}.run()).of("forward").empty());
}

TEST_CASE("A rank is named only if it differs by a share, by five times the spread, and by much") {
  struct Row {
    const char* what;
    std::vector<std::vector<Duration>> took;  // by rank, repeated
    std::size_t named;
  };
  const std::vector<Duration> varied{100ms, 200ms, 300ms, 200ms};
  const auto eight = [](const std::vector<Duration>& usual, const std::vector<Duration>& third) {
    std::vector<std::vector<Duration>> took(8, usual);
    took[2] = third;
    return took;
  };
  for (const Row& row : std::vector<Row>{
           {"1.2 times", eight({10ms}, {12ms}), 1},
           // The spread of the others: 5 * 1.4826 * 10 ms.
           {"less than their spread", {{174ms}, {90ms}, {100ms}, {110ms}}, 0},
           {"their spread", {{175ms}, {90ms}, {100ms}, {110ms}}, 1},
           // The error of the rank's median: 5 * 1.2533 * 100 ms / 1.349 / sqrt(15) is 119.9 ms.
           {"less than its error", {{119ms, 219ms, 319ms, 219ms}, {100ms}, {100ms}, {100ms}}, 0},
           {"its error", {{120ms, 220ms, 320ms, 220ms}, {100ms}, {100ms}, {100ms}}, 1},
           {"less than the usual error", {{319ms}, varied, varied, varied}, 0},
           {"the usual error", {{320ms}, varied, varied, varied}, 1},
           {"all differ", {{10ms}, {13ms}, {17ms}, {22ms}, {29ms}}, 0},
           // Of an odd number of scopes one half is in the majority: the medians are 1 and 100 ms.
           {"short and long by turns", eight({1ms, 100ms}, {100ms, 1ms}), 0},
           {"80 us", eight({10us}, {90us}), 0},
           {"100 us", eight({10us}, {110us}), 1}}) {
    CAPTURE(row.what);
    std::vector<EndedScopesByName> ranks;
    for (const auto& took : row.took) {
      ranks.push_back({{"work", back_to_back(took)}});
    }
    CHECK(compare_ranks(ranks).stragglers.size() == row.named);
  }
}

TEST_CASE("Ranks wait for each other if their ends are closer than half of what their begins are") {
  for (const auto& [apart, waits, named] :
       {std::tuple{99ms, 400ms, 1U}, {100ms, 400ms, 0U}, {0ms, 249ms, 0U}, {0ms, 251ms, 1U}}) {
    std::vector<EndedScopesByName> ranks(40);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::int64_t step = 1; step <= 15; ++step) {
        const Instant end = Instant{step * 1'000'000'000} + (rank == 7 ? apart : 0ms);
        ranks[rank]["allreduce"].push_back({end, rank == 7 ? 200ms + apart : waits});
      }
    }
    const Searched found = compare_ranks(ranks);
    REQUIRE(found.stragglers.size() == named);
    CHECK((named == 0 || found.stragglers[0].rank == 7));
  }
}

TEST_CASE("A rank that is early at a collective is no straggler") {
  // It waits longest, which is no fault of its own, and is quicker in its own work.
  const Searched found = compare_ranks(SimulatedJob{.slowness = {0.5}}.run());
  CHECK(found.stragglers.empty());
  CHECK(found.compared_ranks == 8);
}

TEST_CASE("A rank that the others wait for is named only if a step gets longer by it") {
  SimulatedJob job{.ranks = 4, .exchange = 1ms, .noise = 0.002, .slowness = {1, 1, 1, 1.02}};
  CHECK(compare_ranks(job.run()).stragglers.empty());  // 2 ms of 104 ms
  job.slowness[3] = 1.1;
  const Searched found = compare_ranks(job.run());
  REQUIRE(found.stragglers.size() == 1);
  CHECK(found.stragglers[0].rank == 3);
  CHECK(found.stragglers[0].kind == StragglerKind::kWaitsLeast);
}

TEST_CASE("The median is that of the middle scope, or between the middle two") {
  for (const auto& [count, median] : {std::pair{10, 209'000us}, std::pair{11, 210'000us}}) {
    std::vector<Duration> took;
    for (int i = 0; i < count; ++i) {
      took.push_back(100ms + 1ms * (7 * i % count));
    }
    std::vector<Duration> twice;
    std::ranges::transform(took, std::back_inserter(twice), [](Duration each) { return 2 * each; });
    const auto scopes = [&](const std::vector<Duration>& of) {
      return EndedScopesByName{{"step", back_to_back(of, {1'000'000}, of.size())}};
    };
    const Searched found = compare_ranks({scopes(took), scopes(took), scopes(took), scopes(twice)});
    REQUIRE(found.stragglers.size() == 1);
    CHECK(found.stragglers[0].median == median);
    CHECK(found.stragglers[0].others == median / 2);
    CHECK(found.stragglers[0].factor == doctest::Approx(2));
  }
}

TEST_CASE("Of a thousand ranks the sixteen slowest are named, and the sixteen that wait least") {
  std::vector<EndedScopesByName> ranks;
  for (int i = 0; i < 1000; ++i) {
    const bool is_unusual = i % 20 == 0;
    std::vector<EndedReading> waits;
    for (int step = 1; step <= 15; ++step) {
      waits.push_back({Instant{} + step * 1s, is_unusual ? 1ms + i * 10us : Duration{500ms}});
    }
    ranks.push_back({{"work", back_to_back({is_unusual ? 200ms + i * 1ms : 100ms})},
                     {"wait", std::move(waits)}});
  }
  const Searched found = compare_ranks(ranks);
  REQUIRE(found.of("work").size() == kMostCandidates);
  CHECK(found.of("work").front().rank == 980);
  CHECK(found.of("work").back().rank == 680);
  CHECK(found.of("wait").size() == kMostCandidates);
}

TEST_CASE("Ranks that do not wait for each other are compared, too") {
  std::vector<EndedScopesByName> ranks;
  for (int i = 0; i < 7; ++i) {
    const Duration took = i == 4 ? 200ms : 100ms + i * 1ms;
    ranks.push_back({{"work", back_to_back({took}, {std::int64_t{i} * 17'000'000})}});
  }
  const Searched found = compare_ranks(ranks);
  REQUIRE(found.stragglers.size() == 1);
  CHECK(found.stragglers[0].rank == 4);
  CHECK(found.stragglers[0].kind == StragglerKind::kSlower);
  CHECK(found.stragglers[0].others == 102'500us);
}

TEST_CASE("Three ranks are compared, and ranks with few scopes are not") {
  const Searched three = compare_ranks(SimulatedJob{.ranks = 3, .slowness = {1, 5}}.run());
  CHECK(three.of("forward").size() == 1);
  CHECK(three.compared_ranks == 3);
  CHECK(compare_ranks(SimulatedJob{.steps = kLeastScopesCompared, .slowness = {1, 5}}.run())
            .of("forward")
            .size() == 1);
  const Searched few =
      compare_ranks(SimulatedJob{.steps = kLeastScopesCompared - 1, .slowness = {1, 5}}.run());
  CHECK(few.stragglers.empty());
  CHECK(few.compared_ranks == 0);
  CHECK(compare_ranks({{}, {{"none", {}}}}).compared_ranks == 0);
}

TEST_CASE("Ranks of two jobs are not compared") {
  const auto ranks = SimulatedJob{.slowness = {3, 3}}.run();
  std::vector<RankScopes> scopes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    scopes.push_back({rank, rank < 2 ? "small" : "large", ranks[rank]});
  }
  const StragglerSearch search = search_stragglers(scopes);
  CHECK(search.stragglers.empty());
  CHECK(search.compared.size() == 6);
}

TEST_CASE("Only the last scopes of a rank count") {
  std::vector<EndedScopesByName> ranks;
  for (int i = 0; i < 4; ++i) {
    // Of several threads: more than one thread keeps. The first half was slow in one rank.
    std::vector<EndedReading> ended =
        back_to_back({i == 1 ? 300ms : 100ms}, {1'000'000}, kMostScopesCompared);
    const auto recent = back_to_back({100ms}, ended.back().ended, kMostScopesCompared);
    ended.insert(ended.end(), recent.begin(), recent.end());
    ranks.push_back({{"work", ended}});
  }
  CHECK(compare_ranks(ranks).stragglers.empty());
}

TEST_CASE("Pages with any values do no harm, and more pairs than are taken are left out") {
  std::vector<EndedScopesByName> ranks;
  for (int i = 0; i < 4; ++i) {
    std::vector<EndedReading> wild(kMostScopesCompared,
                                   {Instant::never(), i == 3 ? kForever : Duration::zero()});
    wild.push_back({{0}, kForever});
    ranks.push_back({{"wild", wild}});
  }
  for (const Straggler& straggler : compare_ranks(ranks).stragglers) {
    CHECK(straggler.rank == 3);
    CHECK(straggler.median >= straggler.others);
  }
  const EndedScopesByName one{{"work", back_to_back({1ms})}};
  std::vector<RankScopes> scopes;
  for (std::size_t rank = 0; rank < kMaxPairsCompared + 5; ++rank) {
    scopes.push_back({rank, "job", one});
  }
  CHECK(search_stragglers(scopes).compared.size() == kMaxPairsCompared);
}
