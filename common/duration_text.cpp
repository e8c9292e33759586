// SPDX-License-Identifier: MIT
#include "common/duration_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "common/limits.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t ns;
};

// From the largest to the smallest, as duration_text() needs them.
constexpr std::array<Unit, 7> kUnits{{{"d", 86'400'000'000'000},
                                      {"h", 3'600'000'000'000},
                                      {"m", 60'000'000'000},
                                      {"s", 1'000'000'000},
                                      {"ms", 1'000'000},
                                      {"us", 1'000},
                                      {"ns", 1}}};

tl::unexpected<Error> not_a_duration(std::string_view text, EndlessDuration endless) {
  return failure(
      fmt::format("'{}' is not a duration: expected a positive number with an optional unit (us, "
                  "ms, s, m, h, d), such as 30, 1.5 or 500ms{}",
                  printable(text), endless == EndlessDuration::kAllowed ? ", or inf" : ""));
}

}  // namespace

Result<Duration> parse_duration(std::string_view text, EndlessDuration endless) {
  if (endless == EndlessDuration::kAllowed && (text == "inf" || text == "-1")) {
    return kForever;
  }
  // from_chars() refuses spaces and a plus sign, and would accept "inf", "nan" and exponents.
  if (text.empty() || text.find_first_not_of("0123456789.") == 0) {
    return not_a_duration(text, endless);
  }
  std::string_view unit = text;
  const auto number = take_number<double>(unit, std::chars_format::fixed);
  if (!number) {
    return not_a_duration(text, endless);
  }
  std::int64_t scale = unit.empty() ? 1'000'000'000 : 0;
  for (const Unit& known : kUnits) {
    if (unit == known.name && unit != "ns") {
      scale = known.ns;
    }
  }
  if (scale == 0) {
    return not_a_duration(text, endless);
  }
  const double ns = *number * static_cast<double>(scale);
  if (ns > static_cast<double>(kMaxTimeout.count())) {
    return failure(fmt::format("'{}' is too long: expected at most {}", printable(text),
                               duration_text(kMaxTimeout)));
  }
  if (!(ns >= 1)) {
    return not_a_duration(text, endless);
  }
  return Duration{std::llround(ns)};
}

std::string duration_text(Duration duration) {
  if (duration == kForever) {
    return "inf";
  }
  for (const Unit& unit : kUnits) {
    if (duration.count() % unit.ns == 0 && duration.count() != 0) {
      return fmt::format("{}{}", duration.count() / unit.ns, unit.name);
    }
  }
  return "0s";
}

std::string duration_for_reading(Duration duration) {
  if (duration == kForever) {
    return "none";
  }
  if (duration == Duration::zero()) {
    return "0 s";
  }
  if (duration < Duration::zero()) {
    return "-" + duration_for_reading(-duration);
  }
  const double seconds = in_seconds(duration);
  if (seconds >= 600) {
    const auto whole = static_cast<std::int64_t>(seconds);
    const auto [large, small, in_large, in_small] =
        whole >= 3600 ? std::tuple("h", "min", whole / 3600, whole / 60 % 60)
                      : std::tuple("min", "s", whole / 60, whole % 60);
    return in_small == 0 ? fmt::format("{} {}", in_large, large)
                         : fmt::format("{} {} {:02} {}", in_large, large, in_small, small);
  }
  // The unit is that of the rounded value: 999.9 ms is 1.00 s, not 1000 ms.
  constexpr double kRoundedUp = 0.9995;
  const auto [unit, ns] = seconds >= kRoundedUp          ? std::pair("s", 1'000'000'000)
                          : seconds >= kRoundedUp * 1e-3 ? std::pair("ms", 1'000'000)
                                                         : std::pair("us", 1'000);
  if (duration.count() % ns == 0) {
    return fmt::format("{} {}", duration.count() / ns, unit);
  }
  const double value = static_cast<double>(duration.count()) / ns;
  return fmt::format("{:.{}f} {}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, unit);
}

Duration duration_from_seconds(double seconds) {
  const double ns = seconds * 1e9;
  if (!(ns <= static_cast<double>(kMaxTimeout.count()))) {
    return kForever;
  }
  return Duration{std::llround(std::max(ns, 0.0))};
}

}  // namespace filetimer
