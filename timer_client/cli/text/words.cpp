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
constexpr std::size_t kSecondsEnd = 19;  // "2026-11-21T03:15:53"

// Returns the microseconds of "", ".5" or ".123456789"; nothing: it is none of these.
std::optional<std::int64_t> microseconds_of(std::string_view fraction) {
  const bool has_digits = fraction.size() > 1 && fraction[0] == '.' &&
                          fraction.find_first_not_of("0123456789", 1) == fraction.npos;
  const std::string digits = has_digits ? std::string(fraction.substr(1)) + "00000" : "";
  return fraction.empty() ? 0 : number_from<std::int64_t>(digits.substr(0, 6));
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

std::string local_time(std::int64_t time_us, const char* form) {
  const std::time_t seconds =
      std::chrono::floor<std::chrono::seconds>(std::chrono::microseconds{time_us}).count();
  std::tm local{};
  char text[64];
  ::localtime_r(&seconds, &local);
  return {text, std::strftime(text, sizeof text, form, &local)};
}

}  // namespace

std::optional<std::int64_t> parse_rfc3339(std::string_view text) {
  constexpr int kLastYear = 2261;  // what fits into nanoseconds
  if (text.size() <= kSecondsEnd || text[4] != '-' || text[7] != '-' || text[10] != 'T' ||
      text[13] != ':' || text[16] != ':' || text.back() != 'Z') {
    return std::nullopt;
  }
  constexpr unsigned kNone = 99;  // no month, day, hour, minute or second
  const auto number = [&](std::size_t at, std::size_t size) {
    return number_from<unsigned>(text.substr(at, size)).value_or(kNone);
  };
  const auto year = static_cast<int>(number(0, 4));
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(number(5, 2)),
                                         std::chrono::day(number(8, 2))};
  const unsigned hour = number(11, 2);
  const unsigned minute = number(14, 2);
  const unsigned second = number(17, 2);
  const auto microseconds =
      microseconds_of(text.substr(kSecondsEnd, text.size() - kSecondsEnd - 1));
  if (year < 1970 || year > kLastYear || !date.ok() || hour >= 24 || minute >= 60 || second > 60 ||
      !microseconds) {  // 60: a leap second
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * kMicroseconds + *microseconds;
}

Result<std::int64_t> parse_since(std::string_view text, std::int64_t now_us) {
  std::string word(text);
  if (word.size() > kSecondsEnd && word[10] == ' ') {
    word[10] = 'T';  // a time with a zone
  }
  if (const auto time = parse_rfc3339(word)) {
    return *time;
  }
  if (const auto at = word.find_first_of("+-", kSecondsEnd); at != word.npos) {
    const auto as_utc = parse_rfc3339(word.substr(0, at) + "Z");
    std::tm zone{};
    const char* const end = ::strptime(&word[at], "%z", &zone);
    if (as_utc && end == word.c_str() + word.size()) {
      return *as_utc - zone.tm_gmtoff * kMicroseconds;
    }
  }
  if (const auto ago = parse_duration(text)) {
    return now_us - std::chrono::duration_cast<std::chrono::microseconds>(*ago).count();
  }
  for (const char* const form : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    std::tm local{};
    local.tm_isdst = -1;
    if (const char* const end = ::strptime(word.c_str(), form, &local);
        end == word.c_str() + word.size()) {
      const int day = local.tm_mday;
      const std::time_t seconds = std::mktime(&local);
      if (local.tm_mday == day) {  // not February 31
        return seconds * kMicroseconds;
      }
    }
  }
  return failure(
      fmt::format("'{}' is no time: expected one such as 2026-11-21T03:15:53Z or '2026-11-21 "
                  "03:15' (local), or how long ago, such as 10m",
                  text));
}

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
  constexpr std::string_view kMarkup = "&<>\"'";
  constexpr std::string_view kEscaped[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string html;
  for (const char byte : printable(bytes)) {
    const std::size_t at = kMarkup.find(byte);
    html += at == kMarkup.npos ? std::string_view(&byte, 1) : kEscaped[at];
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
