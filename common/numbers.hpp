// Numbers in texts, as std::from_chars() reads them: without a space or plus sign before a number,
// and with a minus sign for signed types only.
// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>

namespace filetimer {

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
