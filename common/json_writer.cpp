// SPDX-License-Identifier: MIT
#include "common/json_writer.hpp"

#include <algorithm>

#include "common/text.hpp"

namespace filetimer {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  // Nearly all keys and values have nothing to escape.
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; })) {
    out += text;
    out += '"';
    return;
  }
  constexpr std::string_view kEscaped = "\"\\\n\r\t";
  constexpr std::string_view kEscapes = "\"\\nrt";
  for (const char c : valid_utf8(text)) {
    if (const std::size_t at = kEscaped.find(c); at != kEscaped.npos) {
      out += '\\';
      out += kEscapes[at];
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void JsonWriter::begin_value(std::string_view key) {
  if (text_.back() != '{' && text_.back() != '[') {
    text_.append(",").append(space_);
  }
  if (!key.empty()) {
    append_json_string(text_, key);
    text_.append(":").append(space_);
  }
}

}  // namespace filetimer
