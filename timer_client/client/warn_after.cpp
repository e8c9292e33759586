// SPDX-License-Identifier: MIT
#include "timer_client/client/warn_after.hpp"

#include <fmt/format.h>

#include "common/duration_text.hpp"

namespace filetimer {

std::string why_no_warn_after(Duration warn_after, Duration timeout) {
  const std::string at_most = warn_after > kLongestSoft && warn_after < timeout
                                  ? "at most " + duration_text(kLongestSoft)
                                  : "less than the timeout, " + duration_text(timeout);
  return fmt::format("the warning is after {}: expected more than 0 and {}",
                     duration_text(warn_after), at_most);
}

}  // namespace filetimer
