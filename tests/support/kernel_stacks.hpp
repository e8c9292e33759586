// Kernel stacks (/proc/PID/stack) need CAP_SYS_ADMIN, which an ordinary user lacks, and root in
// most containers, too. Evidence then says that they are missing.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "tests/support/files.hpp"

namespace filetimer::testing {

inline bool can_read_kernel_stacks() {
  return !read_file("/proc/self/stack").empty();
}

// Returns what evidence says is missing besides kernel stacks. If these cannot be read, evidence
// must say so first.
inline std::string missing_but_kernel_stacks(std::string missing) {
  if (can_read_kernel_stacks()) {
    return missing;
  }
  constexpr std::string_view kBegin = "no kernel stacks: cannot read '/proc/";
  constexpr std::string_view kEnd = "/stack': Permission denied";
  const std::size_t end = missing.find(kEnd);
  if (!missing.starts_with(kBegin) || end == missing.npos) {
    return "(nothing on kernel stacks) " + missing;
  }
  missing.erase(0, end + kEnd.size());
  constexpr std::string_view kBetween = "; ";
  return missing.starts_with(kBetween) ? missing.substr(kBetween.size()) : missing;
}

}  // namespace filetimer::testing
