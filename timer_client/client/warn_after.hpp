// The values that a scope's own soft deadline may have: one rule for the library and the command
// line.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/due.hpp"

namespace filetimer {

// Returns whether a scope with this timeout may have this soft deadline. kForever: the scope has no
// deadline, which is later than every warning.
inline bool is_warn_after(std::optional<Duration> warn_after, Duration timeout) {
  return !warn_after ||
         (*warn_after > Duration::zero() && *warn_after < timeout && *warn_after <= kLongestSoft);
}

// Returns one line about a soft deadline that is not allowed.
std::string why_no_warn_after(Duration warn_after, Duration timeout);

}  // namespace filetimer
