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

using filetimer::Duration;
using filetimer::duration_for_reading;
using filetimer::duration_text;
using filetimer::EndlessDuration;
using filetimer::kForever;
using filetimer::kMaxTimeout;
using filetimer::parse_duration;
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

TEST_CASE("a duration is written exactly and can be read again") {
  CHECK(duration_text(30s) == "30s");
  CHECK(duration_text(90s) == "90s");
  CHECK(duration_text(60s) == "1m");
  CHECK(duration_text(1500ms) == "1500ms");
  CHECK(duration_text(250us) == "250us");
  CHECK(duration_text(48h) == "2d");
  CHECK(duration_text(7ns) == "7ns");
  CHECK(duration_text(0s) == "0s");
  CHECK(duration_text(kForever) == "inf");
  for (const Good& good : kGoodDurations) {
    if (good.value.count() % 1000 == 0) {
      CAPTURE(good.word);
      CHECK(parse_duration(duration_text(good.value)) == good.value);
    }
  }
}

TEST_CASE("a duration for reading has three places and the unit a reader expects") {
  CHECK(duration_for_reading(250us) == "250 us");
  CHECK(duration_for_reading(4500us) == "4.50 ms");
  CHECK(duration_for_reading(45'600us) == "45.6 ms");
  CHECK(duration_for_reading(1234ms) == "1.23 s");
  CHECK(duration_for_reading(999'900us) == "1.00 s");
  CHECK(duration_for_reading(999'400us) == "999 ms");
  CHECK(duration_for_reading(99'960us) == "100 ms");
  CHECK(duration_for_reading(9'999us) == "10.0 ms");
  CHECK(duration_for_reading(999'900ns) == "1.00 ms");
  CHECK(duration_for_reading(31'200ms) == "31.2 s");
  CHECK(duration_for_reading(599s) == "599 s");
  CHECK(duration_for_reading(605s) == "10 min 05 s");
  CHECK(duration_for_reading(2h + 5min) == "2 h 05 min");
  CHECK(duration_for_reading(-31'200ms) == "-31.2 s");
  CHECK(duration_for_reading(30'001us) == "30.0 ms");
  CHECK(duration_for_reading(999'500us) == "1.00 s");
  CHECK(duration_for_reading(99'950us) == "100 ms");
  CHECK(duration_for_reading(9'995us) == "10.0 ms");
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

TEST_CASE("a duration for reading that is a whole number has no decimals") {
  CHECK(duration_for_reading(30s) == "30 s");
  CHECK(duration_for_reading(500ms) == "500 ms");
  CHECK(duration_for_reading(10min) == "10 min");
  CHECK(duration_for_reading(1h) == "1 h");
  CHECK(duration_for_reading(2h) == "2 h");
  CHECK(duration_for_reading(0s) == "0 s");
  CHECK(duration_for_reading(kForever) == "none");
}

TEST_CASE("seconds of the wire are durations, and those that are too long are endless") {
  CHECK(filetimer::duration_from_seconds(0.25) == std::chrono::milliseconds{250});
  CHECK(filetimer::duration_from_seconds(1e-9) == std::chrono::nanoseconds{1});
  CHECK(filetimer::duration_from_seconds(0) == filetimer::Duration::zero());
  CHECK(filetimer::duration_from_seconds(-5) == filetimer::Duration::zero());
  for (const double endless : {1e9, 1e300, HUGE_VAL, std::nan("")}) {
    CHECK(filetimer::duration_from_seconds(endless) == filetimer::kForever);
  }
}
