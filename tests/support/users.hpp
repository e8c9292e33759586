// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

namespace filetimer::testing {

// The id of a user that does not run the tests. The user needs no account.
inline constexpr uid_t kSomebodyElse = 65533;

}  // namespace filetimer::testing
