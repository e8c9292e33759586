// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/words.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>

#include "common/clock.hpp"
#include "common/duration_text.hpp"
#include "common/text.hpp"

namespace filetimer::cli {
namespace {

constexpr std::int64_t kMicroseconds = 1'000'000;

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

// Returns the number of the two digits at `at`; -1: they are not digits.
int two_digits(std::string_view text, std::size_t at) {
  return is_decimal(text[at]) && is_decimal(text[at + 1])
             ? (text[at] - '0') * 10 + text[at + 1] - '0'
             : -1;
}

bool is_within(int number, int low, int high) {
  return number >= low && number <= high;
}

// Takes ".123456789" off the front of `text` and returns it as microseconds; 0 without a point, -1
// if no digit follows it.
std::int64_t take_fraction(std::string_view& text) {
  if (!text.starts_with('.')) {
    return 0;
  }
  std::int64_t microseconds = 0;
  std::int64_t unit = kMicroseconds / 10;
  std::size_t i = 1;
  for (; i < text.size() && is_decimal(text[i]); ++i, unit /= 10) {
    microseconds += unit * (text[i] - '0');
  }
  text.remove_prefix(i);
  return i > 1 ? microseconds : -1;
}

// Returns the minutes of "Z" or "+01:00".
std::optional<int> zone_offset(std::string_view zone) {
  if (zone == "Z" || zone == "z") {
    return 0;
  }
  if (zone.size() != 6 || (zone[0] != '+' && zone[0] != '-') || zone[3] != ':' ||
      !is_within(two_digits(zone, 1), 0, 23) || !is_within(two_digits(zone, 4), 0, 59)) {
    return std::nullopt;
  }
  const int minutes = two_digits(zone, 1) * 60 + two_digits(zone, 4);
  return zone[0] == '-' ? -minutes : minutes;
}

// --- HTML ---

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

}  // namespace

std::optional<std::int64_t> parse_rfc3339(std::string_view text) {
  constexpr std::size_t kSecondsEnd = 19;  // "2026-11-21T03:15:53"
  if (text.size() <= kSecondsEnd || text[4] != '-' || text[7] != '-' || text[13] != ':' ||
      text[16] != ':' || std::string_view("Tt ").find(text[10]) == std::string_view::npos) {
    return std::nullopt;
  }
  const int century = two_digits(text, 0);
  const int year = century * 100 + two_digits(text, 2);
  const int month = two_digits(text, 5);
  const int day = two_digits(text, 8);
  const int hour = two_digits(text, 11);
  const int minute = two_digits(text, 14);
  const int second = two_digits(text, 17);
  constexpr int kLastYear = 2261;  // what fits into nanoseconds
  if (century < 0 || two_digits(text, 2) < 0 || !is_within(year, 1970, kLastYear) || month < 0 ||
      day < 0 || !is_within(hour, 0, 23) || !is_within(minute, 0, 59) ||
      !is_within(second, 0, 60)) {  // 60: a leap second
    return std::nullopt;
  }
  text.remove_prefix(kSecondsEnd);
  const std::int64_t microseconds = take_fraction(text);
  const auto offset_minutes = zone_offset(text);
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (microseconds < 0 || !offset_minutes || !date.ok()) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t minutes = (days * 24 + hour) * 60 + minute - *offset_minutes;
  return (minutes * 60 + second) * kMicroseconds + microseconds;
}

Result<std::int64_t> parse_since(std::string_view text, std::int64_t now_us) {
  if (const auto time = parse_rfc3339(text)) {
    return *time;
  }
  if (const auto ago = parse_duration(text)) {
    return now_us - std::chrono::duration_cast<std::chrono::microseconds>(*ago).count();
  }
  for (const char* const form : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    std::tm local{};
    local.tm_isdst = -1;
    const std::string word(text);
    if (const char* const end = ::strptime(word.c_str(), form, &local);
        end == word.c_str() + word.size()) {
      const int day = local.tm_mday;
      const std::time_t seconds = std::mktime(&local);
      if (local.tm_mday == day) {  // not February 31
        return seconds * std::int64_t{1'000'000};
      }
    }
  }
  return failure(
      fmt::format("'{}' is no time: expected one such as 2026-11-21T03:15:53Z or '2026-11-21 "
                  "03:15' (local), or how long ago, such as 10m",
                  text));
}

namespace {

std::string local_time(std::int64_t time_us, const char* form) {
  const std::time_t seconds =
      std::chrono::floor<std::chrono::seconds>(std::chrono::microseconds{time_us}).count();
  std::tm local{};
  char text[64];
  ::localtime_r(&seconds, &local);
  return {text, std::strftime(text, sizeof text, form, &local)};
}

}  // namespace

std::string time_text(std::int64_t time_us) {
  const std::int64_t part = (time_us % 1'000'000 + 1'000'000) % 1'000'000;
  return fmt::format("{}.{:06} {}", local_time(time_us, "%F %T"), part, zone_text(time_us));
}

std::string zone_text(std::int64_t time_us) {
  return local_time(time_us, "%Z");
}

std::string seconds_text(double seconds) {
  constexpr double kLongest = 9e9;  // 285 years still fit into nanoseconds
  return duration_for_reading(
      Duration{std::llround(std::clamp(seconds, -kLongest, kLongest) * 1e9)});
}

std::string number_text(const std::optional<std::int64_t>& number) {
  return number ? fmt::format_int(*number).str() : "";
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) {
      text.append(text.empty() ? "" : separator).append(part);
    }
  }
  return text;
}

std::string meant_by(std::string_view word, const std::vector<std::string>& choices) {
  std::string found;
  std::size_t least = 3;
  for (const std::string& choice : choices) {
    // How many characters must be inserted, removed or replaced.
    std::vector<std::size_t> above(choice.size() + 1);
    std::iota(above.begin(), above.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::vector<std::size_t> row{i + 1};
      for (std::size_t j = 0; j < choice.size(); ++j) {
        row.push_back(
            std::min({row[j] + 1, above[j + 1] + 1, above[j] + (word[i] == choice[j] ? 0U : 1U)}));
      }
      above = std::move(row);
    }
    if (above.back() < least && 2 * above.back() < choice.size()) {
      least = above.back();
      found = choice;
    }
  }
  return found;
}

std::string with_spaces(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string backquoted(std::string_view scope) {
  return fmt::format("`{}`", scope);
}

std::string html_text(std::string_view bytes) {
  const std::string text = printable(bytes);
  std::string html;
  html.reserve(text.size());
  for (const char byte : text) {
    if (byte == '&') {
      html += "&amp;";
    } else if (byte == '<') {
      html += "&lt;";
    } else if (byte == '>') {
      html += "&gt;";
    } else if (byte == '"') {
      html += "&quot;";
    } else if (byte == '\'') {
      html += "&#39;";
    } else {
      html += byte;
    }
  }
  return html;
}

std::string html_text(std::string_view bytes, std::size_t most) {
  const std::string text = valid_utf8(bytes);
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i]) && characters++ == most) {
      return html_text(std::string_view(text).substr(0, i)).append(kDots);
    }
  }
  return html_text(text);
}

}  // namespace filetimer::cli
