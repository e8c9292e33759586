// Makes bytes from other programs safe to print and to store, and bounds names.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace filetimer {

// Returns at most `max_bytes` of `text`, cut between UTF-8 characters.
std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes);

// The name of an idle timeout in records.
inline constexpr std::string_view kIdleScopeName = "(idle)";

// Returns the name of a scope, if it has at most kMaxScopeNameBytes. A longer one is no error: it
// becomes "beginning...~0123456789abcdef" of at most that many bytes, cut between UTF-8 characters
// and marked with the hash of the whole name, so that two long names that differ at the end stay
// two scopes.
std::string bounded_scope_name(std::string_view whole);

// Returns valid UTF-8: bytes that are not UTF-8 become \xHH. Nothing else is changed.
std::string valid_utf8(std::string_view bytes);

// Returns one line for a terminal: as valid_utf8(), and control characters become \n, \t or \xHH,
// characters that reorder or hide text \uHHHH or \UHHHHHHHH.
std::string printable(std::string_view bytes);

// Returns the first `most` parts, and "and 12 more", which counts all others of `count`, or of the
// parts if they are more; empty: there are no parts.
std::string listed(const std::vector<std::string>& parts, std::size_t most,
                   std::string_view separator = ", ", std::size_t count = 0);

// Returns what `of` returns for each value, in their order.
template <class Values, class Of>
auto mapped(const Values& values, Of of) {
  using One = std::invoke_result_t<Of&, decltype(*std::begin(values))>;
  std::vector<std::decay_t<One>> results;
  for (auto&& value : values) {
    results.push_back(std::invoke(of, value));
  }
  return results;
}

// Returns the text before the first `end`, or all of it if there is none. Removes from `text` what
// it returns, and the `end`.
inline std::string_view take_until(std::string_view& text, char end) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

// --- numbers, as std::from_chars() reads them: without a space or plus sign before a number, and
// with a minus sign for signed types only ---

// Returns the number at the beginning of `text`, and removes it from `text`. `format` is passed to
// std::from_chars(): the base of an integer, or a std::chars_format. Without a number in the type's
// range, returns nothing and leaves `text` unchanged.
template <class Number, class... Format>
std::optional<Number> take_number(std::string_view& text, Format... format) {
  Number number{};
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, format...);
  if (error != std::errc{}) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Returns the number, if the whole text is one.
template <class Number, class... Format>
std::optional<Number> number_from(std::string_view text, Format... format) {
  const auto number = take_number<Number>(text, format...);
  return text.empty() ? number : std::nullopt;
}

}  // namespace filetimer
