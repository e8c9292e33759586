// Pieces of what the commands print: times, durations, counts and lists; and pages of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/result.hpp"

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

// Stands for what is left out of a text.
inline constexpr std::string_view kDots = "...";

// Returns microseconds since the epoch of a time as records have it, "2026-11-21T03:15:53.123456Z".
// Digits behind the microseconds are dropped. Returns nothing for any other text.
std::optional<std::int64_t> parse_rfc3339(std::string_view text);

// Parses a value of `--since`: such a time, one with an offset ("2026-11-21T04:15:53+01:00"), one
// without a zone ("2026-11-21 03:15", local time), or a duration back from `now_us` (`10m`).
Result<std::int64_t> parse_since(std::string_view text, std::int64_t now_us);

// Returns "2026-11-21 03:15:53.123456 UTC": local time with its zone, as $TZ or the host has it.
std::string time_text(std::int64_t time_us);
// Returns that zone: "UTC".
std::string zone_text(std::int64_t time_us);

// Returns duration_for_reading() of a number in a record, which may have any size.
std::string seconds_text(double seconds);

// Returns its digits; empty: there is none.
std::string number_text(const std::optional<std::int64_t>& number);
// Returns "1 host", "2 hosts".
std::string counted(std::integral auto count, std::string_view what) {
  return std::to_string(count).append(" ").append(what).append(count == 1 ? "" : "s");
}
// Returns the parts that are not empty.
std::string joined(const std::vector<std::string>& parts, std::string_view separator = ", ");
// Returns the values in groups of one key each, in the order in which these come first.
template <class Value, class KeyOf>
std::vector<std::vector<Value>> grouped(const std::vector<Value>& values, KeyOf key_of) {
  std::map<std::decay_t<std::invoke_result_t<KeyOf&, const Value&>>, std::size_t> places;
  std::vector<std::vector<Value>> groups;
  for (const Value& value : values) {
    const auto [place, is_new] = places.try_emplace(std::invoke(key_of, value), groups.size());
    if (is_new) {
      groups.emplace_back();
    }
    groups[place->second].push_back(value);
  }
  return groups;
}
// Returns the choice that a mistyped word may stand for: at most two characters differ, and not
// half of them. Empty: none.
std::string meant_by(std::string_view word, const std::vector<std::string>& choices);
// Returns about how many columns valid UTF-8 takes on a terminal: two for a wide character.
std::size_t display_width(std::string_view text);
// Returns the longest beginning of valid UTF-8 that takes at most so many columns.
std::string_view prefix_of_width(std::string_view text, std::size_t columns);

// Returns "already gone" of "already_gone".
std::string with_spaces(std::string_view name);
// Returns "`step`".
std::string backquoted(std::string_view scope);

// Returns the first `most` characters of `bytes`, with "..." if there are more, for an element or a
// quoted attribute. Characters that would be markup are escaped. Bytes that are not UTF-8, control
// characters and those that change the direction of the text become visible: \xHH, \u202e.
std::string html_text(std::string_view bytes, std::size_t most = std::string_view::npos);

// --- pages ---

inline constexpr std::size_t kPageWidth = 80;

// A page of text, 80 columns wide: headings, labelled fields and paragraphs, wrapped between words.
// All text passes printable() here, so no record can control the terminal.
//
//   Page page;
//   page.heading("Outcome");
//   page.field("verdict", "dead");
//   out.write(std::move(page).text());
class Page {
 public:
  explicit Page(bool colour = false) : colour_(colour) {}

  // Adds text from the left edge.
  void paragraph(std::string_view text);
  // Adds a line of its own with a blank line before it; none at the beginning of the page.
  void heading(std::string_view title);
  // Adds "  label  value", or nothing for an empty value. The values of fields that follow each
  // other begin in one column, and so do their further lines. A long label has lines of its own.
  void field(std::string_view label, std::string_view value, std::size_t indent = 2);
  // Adds text `indent` columns in, its further lines two more; nothing for an empty text.
  void item(std::size_t indent, std::string_view text);

  // Returns all that was added.
  [[nodiscard]] std::string text() &&;

 private:
  struct Field {
    std::size_t indent;
    std::string label;
    std::string value;
  };

  void end_fields();
  void wrap(std::string_view text, std::size_t first_column, std::size_t indent);

  std::string text_;
  std::vector<Field> fields_;  // not in text_ yet
  bool colour_;
};

// Adds each field of `object`, those of a newer server, too, that is neither `hidden` nor empty, in
// their order. The unit that ends the name of a field moves to its value.
void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden = {}, std::size_t indent = 2);

// Returns a field as a part of a sentence: "overdue 300 us", and of a text the text alone. Empty:
// it is absent or null.
std::string field_text(const simdjson::dom::object& object, std::string_view key);

}  // namespace filetimer::cli
