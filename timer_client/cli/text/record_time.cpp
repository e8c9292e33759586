// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/record_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/clock.hpp"
#include "common/duration_text.hpp"

namespace filetimer::cli {
namespace {

constexpr std::int64_t kMicroseconds = 1'000'000;

// Takes digits and separators off the front of a text; once something does not fit, nothing does.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  int digits(std::size_t count, int low, int high) {
    int number = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const char c = i < rest_.size() ? rest_[i] : '\0';
      good_ = good_ && c >= '0' && c <= '9';
      number = number * 10 + (good_ ? c - '0' : 0);
    }
    good_ = good_ && number >= low && number <= high;
    rest_.remove_prefix(good_ ? count : 0);
    return good_ ? number : low;
  }

  char one_of(std::string_view characters) {
    good_ = good_ && !rest_.empty() && characters.find(rest_[0]) != std::string_view::npos;
    const char found = good_ ? rest_[0] : '\0';
    rest_.remove_prefix(good_ ? 1 : 0);
    return found;
  }

  // ".123456789" as microseconds, 0 when there is no point.
  std::int64_t fraction() {
    if (!good_ || rest_.empty() || rest_[0] != '.') {
      return 0;
    }
    rest_.remove_prefix(1);
    std::int64_t microseconds = 0;
    std::int64_t unit = kMicroseconds / 10;
    good_ = !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9';
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      microseconds += unit * (rest_[0] - '0');
      unit /= 10;
      rest_.remove_prefix(1);
    }
    return microseconds;
  }

  [[nodiscard]] bool ended_well() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

Duration bounded_duration(double seconds) {
  constexpr double kLongest = 9e9;  // 285 years still fit into nanoseconds
  return Duration{std::llround(std::clamp(seconds, -kLongest, kLongest) * 1e9)};
}

}  // namespace

std::optional<std::int64_t> parse_rfc3339(std::string_view text) {
  Scanner scan(text);
  const int year = scan.digits(4, 1970, 2261);  // what fits into nanoseconds
  scan.one_of("-");
  const int month = scan.digits(2, 1, 12);
  scan.one_of("-");
  const int day = scan.digits(2, 1, 31);
  scan.one_of("Tt ");
  const int hour = scan.digits(2, 0, 23);
  scan.one_of(":");
  const int minute = scan.digits(2, 0, 59);
  scan.one_of(":");
  const int second = scan.digits(2, 0, 60);  // 60: a leap second
  const std::int64_t microseconds = scan.fraction();
  const char zone = scan.one_of("Zz+-");
  int offset_minutes = 0;
  if (zone == '+' || zone == '-') {
    offset_minutes = scan.digits(2, 0, 23) * 60;
    scan.one_of(":");
    offset_minutes += scan.digits(2, 0, 59);
    offset_minutes = zone == '-' ? -offset_minutes : offset_minutes;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!scan.ended_well() || !date.ok()) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t minutes = (days * 24 + hour) * 60 + minute - offset_minutes;
  return (minutes * 60 + second) * kMicroseconds + microseconds;
}

Result<std::int64_t> parse_since(std::string_view text, std::int64_t now_us) {
  if (const auto time = parse_rfc3339(text)) {
    return *time;
  }
  if (const auto ago = parse_duration(text)) {
    return now_us - std::chrono::duration_cast<std::chrono::microseconds>(*ago).count();
  }
  return failure(
      fmt::format("'{}' is no time: expected one with its zone, such as "
                  "2026-11-21T03:15:53Z, or how long ago, such as 10m",
                  text));
}

std::string day_of(std::int64_t time_us) {
  return long_time(time_us).substr(0, 10);
}

std::string time_of_day(std::int64_t time_us) {
  return long_time(time_us).substr(11, 8);
}

std::string long_time(std::int64_t time_us) {
  // "2026-11-21T03:15:53.123456Z"
  std::string text = rfc3339(time_us * 1000);
  text[10] = ' ';
  text.back() = ' ';
  return text + "UTC";
}

std::string seconds_text(double seconds) {
  return duration_for_reading(bounded_duration(seconds));
}

double as_asked(double seconds) {
  constexpr double kOnTheWay = 2e-4;  // of the timeout
  if (!(seconds > 0) || seconds > 9e9) {
    return seconds;
  }
  const double unit = std::pow(10, std::floor(std::log10(seconds)) - 2);
  const double asked = std::round(seconds / unit) * unit;
  return std::abs(asked - seconds) <= kOnTheWay * seconds ? asked : seconds;
}

std::string timeout_text(double seconds) {
  seconds = as_asked(seconds);
  if (seconds < 1e-3 || seconds > 9e9) {
    return seconds_text(seconds);
  }
  if (seconds >= 7200 && std::fmod(seconds, 3600) == 0) {
    return fmt::format("{} h", static_cast<std::int64_t>(seconds / 3600));
  }
  if (seconds >= 600 && std::fmod(seconds, 60) == 0) {
    return fmt::format("{} min", static_cast<std::int64_t>(seconds / 60));
  }
  if (seconds >= 600) {
    return seconds_text(seconds);
  }
  return seconds < 1 ? fmt::format("{:.6g} ms", seconds * 1e3) : fmt::format("{:.6g} s", seconds);
}

}  // namespace filetimer::cli
