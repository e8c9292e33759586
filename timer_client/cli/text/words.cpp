// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

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

// Returns the code point of the three bytes at `at` of valid UTF-8; 0: there is no such character.
unsigned three_bytes_at(std::string_view text, std::size_t at) {
  if (at + 2 >= text.size() || (static_cast<unsigned char>(text[at]) & 0xF0U) != 0xE0) {
    return 0;
  }
  const auto bits = [&](std::size_t i, unsigned mask) {
    return static_cast<unsigned char>(text[at + i]) & mask;
  };
  return bits(0, 0x0F) << 12U | bits(1, 0x3F) << 6U | bits(2, 0x3F);
}

// Returns whether a character of three bytes reorders text, ends a line or has no width.
bool is_invisible(unsigned code_point) {
  return (code_point >= 0x200B && code_point <= 0x200F) ||
         (code_point >= 0x2028 && code_point <= 0x202E) ||
         (code_point >= 0x2060 && code_point <= 0x206F) || code_point == 0xFEFF;
}

constexpr std::string_view kArabicLetterMark = "\xD8\x9C";  // U+061C

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
  return failure(
      fmt::format("'{}' is no time: expected one with its zone, such as "
                  "2026-11-21T03:15:53Z, or how long ago, such as 10m",
                  text));
}

std::string time_text(std::int64_t time_us) {
  std::string text = rfc3339(time_us * 1000);  // "2026-11-21T03:15:53.123456Z"
  text[10] = ' ';
  text.back() = ' ';
  return text + "UTC";
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

std::string listed(const std::vector<std::string>& parts, std::size_t most,
                   std::string_view separator) {
  const auto end = parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), most));
  std::string text = fmt::format("{}", fmt::join(parts.begin(), end, separator));
  return parts.size() > most ? text + fmt::format(" and {} more", parts.size() - most) : text;
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
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (const unsigned code_point = three_bytes_at(text, i); is_invisible(code_point)) {
      html += fmt::format("\\u{:04x}", code_point);
      i += 2;
    } else if (std::string_view(text).substr(i).starts_with(kArabicLetterMark)) {
      html += "\\u061c";
      i += 1;
    } else if (byte == '&') {
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
