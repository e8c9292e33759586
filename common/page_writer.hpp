// What the owner of a scope page writes into it besides the slots: the beginning, and names.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/scope_page.hpp"

namespace filetimer {

// The part of a header that all pages have: what it is, of which boot, whose, and since when.
void begin_page(PageHeader& header, std::uint32_t flags);

// NUL at the end; what is too long is cut.
template <std::size_t Size>
void put_text(char (&field)[Size], std::string_view text) {
  std::memset(field, 0, Size);
  std::memcpy(field, text.data(), std::min(text.size(), Size - 1));
}

// At most kMaxScopeNameBytes.
void write_name(SlotName& name, std::string_view text);
// How many bytes of a SlotName hold a name of that length.
constexpr std::size_t name_bytes(std::size_t length) {
  return (std::min(length, kMaxScopeNameBytes) / 8 + 1) * 8;
}

}  // namespace filetimer
