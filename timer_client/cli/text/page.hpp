// A page of text, 80 columns wide: headings, labelled fields and paragraphs, wrapped between words.
// All text passes printable() here, so whatever a record says stays text on the terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace filetimer::cli {

class Page {
 public:
  explicit Page(bool colour = false) : colour_(colour) {}

  // Text from the left edge.
  void paragraph(std::string_view text);
  // A line of its own with a blank line before it.
  void heading(std::string_view title);
  // "  label      value"; the lines that follow stand under the value. Nothing for
  // an empty value.
  void field(std::string_view label, std::string_view value);
  // Text `indent` columns in, the lines that follow two more. Nothing for an empty text.
  void item(std::size_t indent, std::string_view text);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void wrap(std::string_view text, std::size_t first_column, std::size_t indent);

  std::string text_;
  bool colour_;
};

}  // namespace filetimer::cli
