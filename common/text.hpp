// Bytes that somebody else chose, made safe to print and to store.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace filetimer {

// At most `max_bytes` of `text`, cut between UTF-8 characters.
std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes);

// Valid UTF-8 for any bytes: what is not UTF-8 stands as \xHH. Nothing else is changed.
std::string valid_utf8(std::string_view bytes);

// One line for a terminal: as valid_utf8, and control characters stand as \n, \t or \xHH.
std::string printable(std::string_view bytes);

// Columns that `text` takes on a terminal when every character is one column wide.
std::size_t utf8_length(std::string_view text);

}  // namespace filetimer
