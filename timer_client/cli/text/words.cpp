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
#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/cli/text/output.hpp"

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

constexpr std::size_t kWidestLabel = 24;
constexpr std::size_t kFieldGap = 2;

// --- fields ---

using simdjson::dom::element;

constexpr std::size_t kElementsShown = 16;

std::string size_text(double bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  constexpr double kMost = 999.5;  // what is rounded to 1000 has the next unit
  return bytes >= kMost * 1024 * kMiB ? fmt::format("{:.3g} TiB", bytes / (1024 * 1024 * kMiB))
         : bytes >= kMost * kMiB      ? fmt::format("{:.3g} GiB", bytes / (1024 * kMiB))
         : bytes >= kMost * 1024      ? fmt::format("{:.3g} MiB", bytes / kMiB)
                                      : fmt::format("{:.3g} KiB", bytes / 1024);
}

struct Unit {
  std::string_view suffix;
  std::string (*text)(double);
};
constexpr Unit kUnits[] = {{"_s", seconds_text},
                           {"_ms", [](double ms) { return seconds_text(ms / 1e3); }},
                           {"_bytes", size_text}};

const Unit* unit_of(std::string_view key, element value) {
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                 [&](const Unit& known) { return key.ends_with(known.suffix); });
  return unit != std::end(kUnits) && (value.is_null() || value_as<double>(value)) ? unit : nullptr;
}

std::string label_of(std::string_view key, element value) {
  if (const Unit* unit = unit_of(key, value)) {
    key.remove_suffix(unit->suffix.size());
  }
  return with_spaces(key);
}

// Returns the value as text. Of an object it has the values only: the names would fill the line.
std::string value_text(std::string_view key, element value) {
  if (const auto array = value_as<simdjson::dom::array>(value)) {
    return listed(mapped(*array, [](element each) { return value_text({}, each); }),
                  kElementsShown);
  }
  if (const auto object = value_as<simdjson::dom::object>(value)) {
    return joined(
        mapped(*object, [](const auto& field) { return value_text(field.key, field.value); }), " ");
  }
  if (const auto text = value_as<std::string_view>(value)) {
    const auto time = key == "time" ? parse_rfc3339(*text) : std::nullopt;
    return time ? time_text(*time) : std::string(*text);
  }
  if (value.is_bool()) {
    return simdjson::minify(value) == "true" ? "yes" : "no";
  }
  if (value.is_null()) {
    return "none";
  }
  const Unit* unit = unit_of(key, value);
  return unit != nullptr ? unit->text(value_as<double>(value).value_or(0))
                         : simdjson::minify(value);
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
      if (local.tm_mday == day && local.tm_year >= 70) {  // not February 31, not of year 25
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

// The library pads by columns, which it estimates.
std::size_t display_width(std::string_view text) {
  const bool is_ascii = std::ranges::none_of(text, [](char c) { return (c & 0x80) != 0; });
  return is_ascii ? text.size()
                  : 2 * text.size() - fmt::formatted_size("{:>{}}", text, text.size());
}

std::string_view prefix_of_width(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  while (end < text.size()) {
    std::size_t next = end + 1;
    while (next < text.size() && is_continuation(text[next])) {
      ++next;
    }
    const std::size_t width = display_width(text.substr(end, next - end));
    if (width > columns) {
      break;
    }
    columns -= width;
    end = next;
  }
  return text.substr(0, end);
}

std::string with_spaces(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string backquoted(std::string_view scope) {
  return fmt::format("`{}`", scope);
}

std::string html_text(std::string_view bytes, std::size_t most) {
  constexpr std::string_view kMarkup = "&<>\"'";
  constexpr std::string_view kEscaped[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  const std::string text = valid_utf8(bytes);
  std::size_t characters = 0;
  std::size_t end = 0;
  while (end < text.size() && (is_continuation(text[end]) || characters++ < most)) {
    ++end;
  }
  std::string html;
  for (const char byte : printable(std::string_view(text).substr(0, end))) {
    const std::size_t at = kMarkup.find(byte);
    html += at == kMarkup.npos ? std::string_view(&byte, 1) : kEscaped[at];
  }
  return html.append(end < text.size() ? kDots : "");
}

// --- pages ---

void Page::wrap(std::string_view text, std::size_t first_column, std::size_t indent) {
  const std::string safe = printable(text);
  std::string_view rest = safe;
  std::size_t column = first_column;
  bool is_empty = true;  // the line
  const auto break_line = [&] {
    text_.append("\n").append(indent, ' ');
    column = indent;
    is_empty = true;
  };
  while (!rest.empty()) {
    // No longer than a line, so that a long word takes linear time.
    std::string_view word = prefix_of_width(rest.substr(0, rest.find(' ')), kPageWidth);
    if (!is_empty && column + 1 + display_width(word) > kPageWidth) {
      break_line();
    }
    const std::size_t room = kPageWidth - column - (is_empty ? 0 : 1);
    word = prefix_of_width(word, room);  // the whole of it, unless it is wider than a line
    text_.append(is_empty ? "" : " ").append(word);
    column += display_width(word) + (is_empty ? 0 : 1);
    is_empty = false;
    rest.remove_prefix(word.size());
    if (rest.starts_with(' ')) {
      rest.remove_prefix(1);
    }
  }
  text_ += '\n';
}

void Page::end_fields() {
  std::size_t widest = 0;
  for (const Field& field : fields_) {
    widest = std::max(widest, field.indent + std::min(display_width(field.label), kWidestLabel));
  }
  for (const Field& field : std::exchange(fields_, {})) {
    std::size_t end = field.indent + display_width(field.label);
    text_.append(field.indent, ' ');
    if (end > kPageWidth / 2) {
      wrap(field.label, field.indent, field.indent + 2);
      end = 0;
    } else {
      text_.append(field.label);
    }
    const std::size_t begin = std::max(widest, end) + kFieldGap;
    text_.append(begin - end, ' ');
    wrap(field.value, begin, widest + kFieldGap);
  }
}

void Page::paragraph(std::string_view text) {
  end_fields();
  wrap(text, 0, 0);
}

void Page::heading(std::string_view title) {
  end_fields();
  text_ += text_.empty() ? "" : "\n";
  text_ += colour_ ? "\x1b[1m" : "";
  text_ += printable(title);
  text_ += colour_ ? "\x1b[0m\n" : "\n";
}

void Page::field(std::string_view label, std::string_view value, std::size_t indent) {
  if (!value.empty()) {
    fields_.push_back({indent, printable(label), std::string(value)});
  }
}

void Page::item(std::size_t indent, std::string_view text) {
  end_fields();
  if (!text.empty()) {
    text_.append(indent, ' ');
    wrap(text, indent, indent + 2);
  }
}

std::string Page::text() && {
  end_fields();
  return std::move(text_);
}

void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden, std::size_t indent) {
  for (const auto& [key, value] : object) {
    if (std::find(hidden.begin(), hidden.end(), key) == hidden.end()) {
      page.field(label_of(key, value), value_text(key, value), indent);
    }
  }
}

std::string field_text(const simdjson::dom::object& object, std::string_view key) {
  const auto value = value_as<element>(object.at_key(key));
  if (!value || value->is_null()) {
    return {};
  }
  return joined({value->is_string() ? "" : label_of(key, *value), value_text(key, *value)}, " ");
}

}  // namespace filetimer::cli
