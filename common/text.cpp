// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace filetimer {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Returns the length of the well-formed UTF-8 character at the start of `text`; 0: it is malformed
// (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing over U+10FFFF).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return within(1, 0x80, 0xBF) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

enum class Controls { kKept, kEscaped };

std::string sanitised(std::string_view bytes, Controls controls) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t length = character_length(bytes);
    const auto byte = static_cast<unsigned char>(bytes[0]);
    if (length == 0) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
      bytes.remove_prefix(1);
      continue;
    }
    // C1 controls (U+0080 to U+009F) move a terminal's cursor as C0 ones do.
    const bool control =
        (length == 1 && (byte < 0x20 || byte == 0x7F)) ||
        (length == 2 && byte == 0xC2 && static_cast<unsigned char>(bytes[1]) < 0xA0);
    if (control && controls == Controls::kEscaped) {
      if (byte == '\n') {
        out += "\\n";
      } else if (byte == '\t') {
        out += "\\t";
      } else {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}",
                       length == 1 ? byte : static_cast<unsigned char>(bytes[1]));
      }
    } else {
      out += bytes.substr(0, length);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) {
    return text;
  }
  std::size_t end = max_bytes;
  for (int back = 0; back < 3 && end > 0 && is_continuation(text[end]); ++back) {
    --end;
  }
  // Text without any UTF-8 is cut at the limit.
  return text.substr(0, is_continuation(text[end]) ? max_bytes : end);
}

std::string valid_utf8(std::string_view bytes) {
  return sanitised(bytes, Controls::kKept);
}

std::string printable(std::string_view bytes) {
  return sanitised(bytes, Controls::kEscaped);
}

std::size_t utf8_length(std::string_view text) {
  std::size_t characters = 0;
  for (const char c : text) {
    characters += is_continuation(c) ? 0U : 1U;
  }
  return characters;
}

}  // namespace filetimer
