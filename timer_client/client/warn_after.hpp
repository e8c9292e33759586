// What a scope's own soft deadline may be: one rule for the library and the command line.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/soft_deadline.hpp"

namespace filetimer {

// `timeout`: of the scope; kForever: none, which is later than every warning.
inline bool is_warn_after(std::optional<Duration> warn_after, Duration timeout) {
  return !warn_after ||
         (*warn_after > Duration::zero() && *warn_after < timeout && *warn_after <= kLongestSoft);
}

// One line, for one that may not be.
std::string why_no_warn_after(Duration warn_after, Duration timeout);

}  // namespace filetimer
