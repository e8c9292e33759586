// SPDX-License-Identifier: MIT
#include "common/duration_text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "common/limits.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct Good {
  const char* word;
  Duration value;
};

const std::vector<Good> kGoodDurations{
    {"30", 30s},       {"30s", 30s},         {"1.5", 1500ms},         {"1.5s", 1500ms},
    {"0.5", 500ms},    {".5", 500ms},        {"500ms", 500ms},        {"250us", 250us},
    {"0.25us", 250ns}, {"0.001us", 1ns},     {"10m", 10min},          {"2h", 2h},
    {"1d", 24h},       {"1.5d", 36h},        {"0030", 30s},           {"1000000000", kMaxTimeout},
    {"0.1", 100ms},    {"0.000000001", 1ns}, {"11574d", 11574 * 24h},
};

const std::vector<Good> kThreePlaces{
    {"250 us", 250us},      {"4.50 ms", 4500us},    {"45.6 ms", 45'600us}, {"1.23 s", 1234ms},
    {"1.00 s", 999'900us},  {"999 ms", 999'400us},  {"100 ms", 99'960us},  {"10.0 ms", 9'999us},
    {"1.00 ms", 999'900ns}, {"31.2 s", 31'200ms},   {"599 s", 599s},       {"10 min 05 s", 605s},
    {"2 h 05 min", 125min}, {"-31.2 s", -31'200ms}, {"30.0 ms", 30'001us}, {"1.00 s", 999'500us},
    {"100 ms", 99'950us},   {"10.0 ms", 9'995us},
};

const std::vector<Good> kWholeNumbers{
    {"30 s", 30s}, {"500 ms", 500ms}, {"10 min", 10min},  {"1 h", 1h},
    {"2 h", 2h},   {"0 s", 0s},       {"none", kForever},
};

const std::vector<std::string> kBad{
    "",         " ",     "0",    "0s",       "0.0",   "0ms",  "-5",
    "-0",       "-1s",   "-0.5", "+5",       " 5",    "5 ",   "5 s",
    "s",        "ms",    "abc",  "5x",       "5S",    "5Ms",  "5sec",
    "5mins",    "1e3",   "0x10", "1,5",      "1.5.2", ".",    "5s5",
    "1h30",     "nan",   "NaN",  "Inf",      "INF",   "inf ", "infinity",
    "-inf",     "-1.0",  "--1",  "7ns",      "5\n",   "five", "0.0000000001",
    "\xC3\xA9", "1_000", "10%",  "0.0001us",
};

}  // namespace

TEST_CASE("durations are read with and without a unit") {
  for (const Good& good : kGoodDurations) {
    CAPTURE(good.word);
    for (const auto endless : {EndlessDuration::kRefused, EndlessDuration::kAllowed}) {
      const auto parsed = parse_duration(good.word, endless);
      REQUIRE(parsed.has_value());
      CHECK(parsed->count() == good.value.count());
    }
  }
}

TEST_CASE("a word that is not a duration is refused, and quoted on one line") {
  for (const std::string& bad : kBad) {
    CAPTURE(bad);
    for (const auto endless : {EndlessDuration::kRefused, EndlessDuration::kAllowed}) {
      const auto parsed = parse_duration(bad, endless);
      REQUIRE_FALSE(parsed.has_value());
      const std::string& message = parsed.error().message;
      CHECK(message.starts_with("'" + (bad == "5\n" ? std::string("5\\n") : bad) + "' is "));
      CHECK(message.find('\n') == std::string::npos);
      CHECK(message.find("expected") != std::string::npos);
    }
  }
}

TEST_CASE("inf and -1 mean no deadline, and only if one is optional") {
  for (const char* word : {"inf", "-1"}) {
    CAPTURE(word);
    CHECK(parse_duration(word, EndlessDuration::kAllowed) == kForever);
    const auto refused = parse_duration(word);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find(word) != std::string::npos);
    CHECK(refused.error().message.find("or inf") == std::string::npos);
  }
  CHECK(parse_duration("0", EndlessDuration::kAllowed).error().message.find("or inf") !=
        std::string::npos);
}

TEST_CASE("a duration that can only be a mistake in units is refused as too long") {
  for (const char* word : {"1000000001", "11575d", "1e99d", "99999999999999999999"}) {
    CAPTURE(word);
    const auto parsed = parse_duration(word);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().message.find(word) != std::string::npos);
  }
  CHECK(parse_duration("11575d").error().message ==
        "'11575d' is too long: expected at most 1000000000s");
}

TEST_CASE("a duration is written exactly, in the largest unit that it is a multiple of") {
  for (const Good& good :
       {Good{"30s", 30s}, Good{"90s", 90s}, Good{"1m", 60s}, Good{"1500ms", 1500ms},
        Good{"250us", 250us}, Good{"2h", 2h}, Good{"2d", 48h}, Good{"7ns", 7ns}, Good{"0s", 0s},
        Good{"inf", kForever}}) {
    CHECK(duration_text(good.value) == good.word);
  }
}

TEST_CASE("a duration for reading has its usual unit, and three places or is a whole number") {
  for (const auto& texts : {kThreePlaces, kWholeNumbers}) {
    for (const Good& good : texts) {
      CHECK(duration_for_reading(good.value) == good.word);
    }
  }
}

TEST_CASE("any duration is read back from its text, and its text for reading is near it") {
  std::mt19937_64 draw(7);
  for (int i = 0; i < 20'000; ++i) {
    const auto digits = static_cast<int>(draw() % 18);
    std::int64_t most = 10;
    for (int digit = 0; digit < digits; ++digit) {
      most *= 10;
    }
    const Duration duration{1 +
                            static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(most))};
    CAPTURE(duration.count());
    const Duration whole{std::min(duration.count() / 1000 + 1, std::int64_t{9'000'000'000'000}) *
                         1000};
    REQUIRE(parse_duration(duration_text(whole)) == whole);
    // "31.2 s", "10 min 05 s"
    double sum = 0;
    std::istringstream words(duration_for_reading(duration));
    double number = 0;
    for (std::string unit; words >> number >> unit;) {
      sum += number * (unit == "us"    ? 1e3
                       : unit == "ms"  ? 1e6
                       : unit == "s"   ? 1e9
                       : unit == "min" ? 60e9
                       : unit == "h"   ? 3600e9
                                       : std::nan(""));
    }
    const double exact = static_cast<double>(duration.count());
    REQUIRE(std::abs(sum - exact) <= (exact >= 3600e9 ? 60e9 : std::max(exact * 0.0055, 6.0)));
  }
}

TEST_CASE("seconds of the wire are durations, and those that are too long are endless") {
  CHECK(duration_from_seconds(0.25) == std::chrono::milliseconds{250});
  CHECK(duration_from_seconds(1e-9) == std::chrono::nanoseconds{1});
  CHECK(duration_from_seconds(0) == Duration::zero());
  CHECK(duration_from_seconds(-5) == Duration::zero());
  CHECK(duration_from_seconds(1e9) == kMaxTimeout);
  for (const double endless : {1e9 + 1, 1e300, HUGE_VAL, std::nan("")}) {
    CHECK(duration_from_seconds(endless) == kForever);
  }
}
