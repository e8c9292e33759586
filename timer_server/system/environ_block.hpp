// The bytes of /proc/PID/environ: entries NAME=VALUE, each with a zero byte after it.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string_view>

namespace filetimer {

// Returns the value of the first entry of that name, or an empty text if there is none.
inline std::string_view value_in_environ(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::string_view entry = block.substr(0, block.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
    block.remove_prefix(std::min(entry.size() + 1, block.size()));
  }
  return {};
}

}  // namespace filetimer
