// Numbers in texts, as std::from_chars() reads them: no space and no plus sign before a number, and
// a minus sign only where the type has one.
// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>

namespace filetimer {

// Returns the number that `text` begins with, and removes it from `text`. `format` is what
// std::from_chars() takes: the base of an integer, or a std::chars_format. Without a number in the
// type's range, `text` stays as it is.
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

// Returns the number that the whole text is.
template <class Number, class... Format>
std::optional<Number> number_from(std::string_view text, Format... format) {
  const auto number = take_number<Number>(text, format...);
  return text.empty() ? number : std::nullopt;
}

}  // namespace filetimer
