// Writes the header and the names of a scope page. Used by the owner of the page.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/scope_page.hpp"

namespace filetimer {

// Writes the fields of the header that all pages have: magic, version, boot, user and time.
void begin_page(PageHeader& header, std::uint32_t flags);

// Writes a text with NUL at the end, cut to fit.
template <std::size_t Size>
void put_text(char (&field)[Size], std::string_view text) {
  std::memset(field, 0, Size);
  std::memcpy(field, text.data(), std::min(text.size(), Size - 1));
}

// Writes at most kMaxScopeNameBytes of a name.
void write_name(SlotName& name, std::string_view text);
// Returns how many bytes of a SlotName a name of that length takes.
constexpr std::size_t name_bytes(std::size_t length) {
  return (std::min(length, kMaxScopeNameBytes) / 8 + 1) * 8;
}

}  // namespace filetimer
