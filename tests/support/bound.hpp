// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace filetimer::testing {

// The bound of every wait of a test: longer than any of them takes on a busy machine, and well
// below CTest's limit. A test that reaches it fails.
inline constexpr std::chrono::milliseconds kBound = std::chrono::seconds{20};

}  // namespace filetimer::testing
