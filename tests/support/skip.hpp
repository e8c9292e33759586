// For tests that this machine cannot run: CTest shows them as skipped, and scripts/test counts them
// and prints each reason.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::testing {

// Marks the running test case as skipped, even if parts of it ran. A failed check still fails it.
void skip(const std::string& reason);

}  // namespace filetimer::testing

// Ends the running test case, as skipped. `reason` is one line: what is missing here.
#define FILETIMER_SKIP(reason)          \
  do {                                  \
    ::filetimer::testing::skip(reason); \
    return;                             \
  } while (false)

// Does that if `condition` is true.
#define FILETIMER_SKIP_IF(condition, reason) \
  do {                                       \
    if (condition) {                         \
      FILETIMER_SKIP(reason);                \
    }                                        \
  } while (false)
