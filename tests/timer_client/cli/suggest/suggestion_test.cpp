// SPDX-License-Identifier: MIT
#include "timer_client/cli/suggest/suggestion.hpp"

#include <doctest/doctest.h>

namespace filetimer::cli {
namespace {

using namespace std::chrono_literals;

TEST_CASE("scopes that all take as long are off by a sixteenth, wherever their bucket begins") {
  for (const std::int64_t ns :
       {std::int64_t{1} << 30, (std::int64_t{1} << 30) + 1'000'000, (std::int64_t{9} << 27) - 1,
        std::int64_t{600}, std::int64_t{3'600} << 30}) {
    ScopeStatistics statistics;
    statistics.count = 1001;
    statistics.histogram[bucket_of(ns)] = 1000;
    statistics.histogram[bucket_of(5 * ns)] = 1;
    statistics.first_histogram[bucket_of(5 * ns)] = 1;  // of a thread
    statistics.longest = statistics.longest_first = Duration{5 * ns};
    const Durations durations = durations_of(statistics);
    // A bucket is at most an eighth as wide as it begins, and its middle stands for all of it.
    for (const Duration found : {durations.median, durations.p999, durations.longest}) {
      CAPTURE(found.count());
      CHECK(found >= Duration{ns} * 15 / 16);
      CHECK(found <= Duration{ns} * 17 / 16);
    }
  }
}

TEST_CASE("first scopes that the histogram lacks do not make a count negative") {
  ScopeStatistics statistics;
  statistics.count = 3;
  statistics.first_histogram[bucket_of(100)] = 5;
  statistics.histogram[bucket_of(100)] = 3;
  const Durations durations = durations_of(statistics);
  CHECK(durations.count == 0);
  CHECK(durations.longest == Duration::zero());
}

TEST_CASE("a timeout is above the longest duration, whatever the percentile, and has a limit") {
  const Suggestion suggestion = suggestion_for({.count = 10'000, .p999 = 2s, .longest = 60s}, {});
  REQUIRE(suggestion.timeout);
  CHECK(*suggestion.timeout == 90s);
  CHECK(suggestion.why == "1.5 x LONGEST");
  const Durations endless{.count = 1000, .p999 = kForever, .longest = kForever};
  CHECK(suggestion_for(endless, {}).timeout == kMaxTimeout);
}

TEST_CASE("a suggestion is rounded up to two significant digits") {
  CHECK(rounded_up(Duration{1}) == 1us);
  CHECK(rounded_up(99us) == 99us);
  CHECK(rounded_up(101us) == 110us);
  CHECK(rounded_up(2610ms) == 2700ms);
  CHECK(rounded_up(2700ms) == 2700ms);
  CHECK(rounded_up(99'001s) == 100'000s);
}

}  // namespace
}  // namespace filetimer::cli
