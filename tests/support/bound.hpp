// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace filetimer::testing {

// No wait of a test is longer: more than anything takes on a busy machine, well below the limit
// that CTest sets. A test that reaches it has failed.
inline constexpr std::chrono::milliseconds kBound = std::chrono::seconds{20};

}  // namespace filetimer::testing
