// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/page.hpp"

#include <algorithm>

#include "common/text.hpp"
#include "timer_client/cli/text/table.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kWidestLabel = 24;
constexpr std::size_t kFieldGap = 2;

}  // namespace

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
    std::string_view word = rest.substr(0, rest.find(' '));
    if (!is_empty && column + 1 + utf8_length(word) > kPageWidth) {
      break_line();
    }
    const std::size_t room = kPageWidth - column - (is_empty ? 0 : 1);
    word = word.substr(0, bytes_of(word, room));  // the whole of it, unless it is wider than a line
    text_.append(is_empty ? "" : " ").append(word);
    column += utf8_length(word) + (is_empty ? 0 : 1);
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
    widest = std::max(widest, field.indent + std::min(utf8_length(field.label), kWidestLabel));
  }
  for (const Field& field : std::exchange(fields_, {})) {
    const std::size_t end = field.indent + utf8_length(field.label);
    const std::size_t begin = std::max(widest, end) + kFieldGap;
    text_.append(field.indent, ' ').append(field.label).append(begin - end, ' ');
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
    fields_.push_back({indent, cut_text(printable(label), kPageWidth / 2), std::string(value)});
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

}  // namespace filetimer::cli
