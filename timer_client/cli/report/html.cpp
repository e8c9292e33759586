// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/html.hpp"

#include <fmt/format.h>

#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

// Returns the code point of the three bytes at `at` of valid UTF-8; 0: there is no such character.
unsigned three_bytes_at(std::string_view text, std::size_t at) {
  if (at + 2 >= text.size() || (static_cast<unsigned char>(text[at]) & 0xF0U) != 0xE0) {
    return 0;
  }
  const auto bits = [&](std::size_t i, unsigned mask) {
    return static_cast<unsigned char>(text[at + i]) & mask;
  };
  return bits(0, 0x0F) << 12U | bits(1, 0x3F) << 6U | bits(2, 0x3F);
}

// Of the characters of three bytes: those that reorder text, end a line or have no width.
bool is_invisible(unsigned code_point) {
  return (code_point >= 0x200B && code_point <= 0x200F) ||
         (code_point >= 0x2028 && code_point <= 0x202E) ||
         (code_point >= 0x2060 && code_point <= 0x206F) || code_point == 0xFEFF;
}

constexpr std::string_view kArabicLetterMark = "\xD8\x9C";  // U+061C

}  // namespace

std::string html_text(std::string_view bytes) {
  const std::string text = printable(bytes);
  std::string html;
  html.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (const unsigned code_point = three_bytes_at(text, i); is_invisible(code_point)) {
      html += fmt::format("\\u{:04x}", code_point);
      i += 2;
    } else if (std::string_view(text).substr(i).starts_with(kArabicLetterMark)) {
      html += "\\u061c";
      i += 1;
    } else if (byte == '&') {
      html += "&amp;";
    } else if (byte == '<') {
      html += "&lt;";
    } else if (byte == '>') {
      html += "&gt;";
    } else if (byte == '"') {
      html += "&quot;";
    } else if (byte == '\'') {
      html += "&#39;";
    } else {
      html += byte;
    }
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
