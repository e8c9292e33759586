// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/page.hpp"

#include <algorithm>

#include "common/text.hpp"
#include "timer_client/cli/text/table.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kFieldIndent = 2;
constexpr std::size_t kValueColumn = 15;

// Bytes of the first `count` characters.
std::size_t bytes_of(std::string_view text, std::size_t count) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const bool starts = (static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80;
    if (starts && count-- == 0) {
      break;
    }
    ++bytes;
  }
  return bytes;
}

}  // namespace

void Page::wrap(std::string_view text, std::size_t first_column, std::size_t indent) {
  const std::string safe = printable(text);
  std::string_view rest = safe;
  std::size_t column = first_column;
  bool line_is_empty = true;
  while (!rest.empty()) {
    std::string_view word = rest.substr(0, rest.find(' '));
    const std::size_t length = utf8_length(word);
    const std::size_t needed = length + (line_is_empty ? 0 : 1);
    if (column + needed > kPageWidth && !line_is_empty) {
      text_.append("\n").append(indent, ' ');
      column = indent;
      line_is_empty = true;
      continue;
    }
    if (length > kPageWidth - column && line_is_empty) {
      word = rest.substr(0, bytes_of(rest, kPageWidth - column));  // longer than a line
    }
    text_.append(line_is_empty ? "" : " ").append(word);
    column += utf8_length(word) + (line_is_empty ? 0 : 1);
    line_is_empty = false;
    rest.remove_prefix(word.size());
    if (!rest.empty() && rest[0] == ' ') {
      rest.remove_prefix(1);
    } else if (!rest.empty()) {
      text_.append("\n").append(indent, ' ');
      column = indent;
      line_is_empty = true;
    }
  }
  text_ += '\n';
}

void Page::paragraph(std::string_view text) {
  wrap(text, 0, 0);
}

void Page::heading(std::string_view title) {
  text_ += '\n';
  text_ += colour_ ? "\x1b[1m" : "";
  text_ += printable(title);
  text_ += colour_ ? "\x1b[0m\n" : "\n";
}

void Page::field(std::string_view label, std::string_view value) {
  if (value.empty()) {
    return;
  }
  const std::string name = printable(label);
  text_.append(kFieldIndent, ' ').append(name);
  const std::size_t end = kFieldIndent + utf8_length(name);
  text_.append(kValueColumn > end ? kValueColumn - end : 1, ' ');
  wrap(value, std::max(kValueColumn, end + 1), kValueColumn);
}

void Page::item(std::size_t indent, std::string_view text) {
  if (text.empty()) {
    return;
  }
  text_.append(indent, ' ');
  wrap(text, indent, indent + 2);
}

}  // namespace filetimer::cli
