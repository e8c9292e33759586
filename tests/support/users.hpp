// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

namespace filetimer::testing {

// A user that is not the one that runs the tests. No account is needed.
inline constexpr uid_t kSomebodyElse = 65533;

}  // namespace filetimer::testing
