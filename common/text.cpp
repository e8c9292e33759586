// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "common/limits.hpp"

namespace filetimer {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

struct Character {
  std::size_t length = 0;  // in bytes; 0: it is malformed
  char32_t code_point = 0;
};

// Returns the UTF-8 character at the start of `text`, which is not empty (Unicode 15, table 3-7: no
// overlong forms, no surrogates, nothing over U+10FFFF).
Character first_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const auto ones = static_cast<std::size_t>(std::countl_one(first));
  const std::size_t length = ones == 0 ? 1 : ones;
  if (ones == 1 || length > 4 || length > text.size()) {
    return {};
  }
  char32_t code_point = first & (0x7FU >> ones);
  for (const char c : text.substr(1, length - 1)) {
    if (!is_continuation(c)) {
      return {};
    }
    code_point = code_point << 6U | (static_cast<unsigned char>(c) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  return code_point < kLeast[length] || is_surrogate || code_point > 0x10FFFF
             ? Character{}
             : Character{length, code_point};
}

// Returns whether a character moves a terminal's cursor: C0, DEL and C1.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0);
}

// Returns whether a terminal shows nothing for a character, ends the line, or reorders others.
// Variation selectors are not among them: they follow emoji.
bool is_invisible(char32_t c) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  constexpr Range kRanges[] = {{0xAD, 0xAD},       {0x61C, 0x61C},     {0x115F, 0x1160},
                               {0x17B4, 0x17B5},   {0x180E, 0x180E},   {0x200B, 0x200F},
                               {0x2028, 0x202E},   {0x2060, 0x206F},   {0x3164, 0x3164},
                               {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF9, 0xFFFB},
                               {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE007F}};
  return std::ranges::any_of(
      kRanges, [c](const Range& range) { return range.first <= c && c <= range.last; });
}

// FNV-1a with 64 bits, which, unlike std::hash, is the same on every host and in every build.
std::uint64_t stable_hash(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

enum class Controls { kKept, kEscaped };

std::string sanitised(std::string_view bytes, Controls controls) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const auto [length, code] = first_character(bytes);
    if (length == 0) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(bytes[0]));
      bytes.remove_prefix(1);
      continue;
    }
    const auto code_point = static_cast<unsigned>(code);
    if (controls == Controls::kEscaped && is_control(code_point)) {
      if (code_point == '\n') {
        out += "\\n";
      } else if (code_point == '\t') {
        out += "\\t";
      } else {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", code_point);
      }
    } else if (controls == Controls::kEscaped && is_invisible(code_point)) {
      if (code_point > 0xFFFF) {
        fmt::format_to(std::back_inserter(out), "\\U{:08x}", code_point);
      } else {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", code_point);
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

std::string bounded_scope_name(std::string_view whole) {
  if (whole.size() <= kMaxScopeNameBytes) {
    return std::string(whole);
  }
  const std::string mark = fmt::format("...~{:016x}", stable_hash(whole));
  return std::string(utf8_prefix(whole, kMaxScopeNameBytes - mark.size())) + mark;
}

std::string valid_utf8(std::string_view bytes) {
  return sanitised(bytes, Controls::kKept);
}

std::string printable(std::string_view bytes) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (std::ranges::all_of(bytes, is_plain)) {  // as nearly all texts are
    return std::string(bytes);
  }
  return sanitised(bytes, Controls::kEscaped);
}

std::string listed(const std::vector<std::string>& parts, std::size_t most,
                   std::string_view separator, std::size_t count) {
  const std::size_t shown = std::min(parts.size(), most);
  const auto end = parts.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text = fmt::format("{}", fmt::join(parts.begin(), end, separator));
  const std::size_t all = std::max(parts.size(), count);
  return shown > 0 && all > shown ? text + fmt::format(" and {} more", all - shown) : text;
}

}  // namespace filetimer
