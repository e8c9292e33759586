// A page of text, 80 columns wide: headings, labelled fields and paragraphs, wrapped between words.
// All text passes printable() here, so no record can control the terminal.
//
//   Page page;
//   page.heading("Outcome");
//   page.field("verdict", "dead");
//   out.write(std::move(page).text());
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

inline constexpr std::size_t kPageWidth = 80;

class Page {
 public:
  explicit Page(bool colour = false) : colour_(colour) {}

  // Adds text from the left edge.
  void paragraph(std::string_view text);
  // Adds a line of its own with a blank line before it; none at the beginning of the page.
  void heading(std::string_view title);
  // Adds "  label  value", or nothing for an empty value. The values of fields that follow each
  // other begin in one column, and so do their further lines.
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
