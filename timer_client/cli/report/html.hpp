// Text for HTML and SVG: whatever a record holds is text there, and nothing else.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace filetimer::cli {

// Returns `bytes` for an element or a quoted attribute. Characters that would be markup are
// escaped. Bytes that are not UTF-8, control characters and those that change the direction of the
// text become visible: \xHH, \u202e.
std::string html_text(std::string_view bytes);

// Returns the first `most` characters of `bytes` in the same way, with "..." if there are more.
std::string html_text(std::string_view bytes, std::size_t most);

}  // namespace filetimer::cli
