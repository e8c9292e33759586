// Tests of what this machine cannot do say so: CTest shows them as skipped, and scripts/test counts
// them and prints each reason.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::testing {

// Marks the running test case as skipped, whatever else of it was checked. A check that fails still
// fails it.
void skip(const std::string& reason);

}  // namespace filetimer::testing

// Ends the running test case, as skipped. `reason` is one line: what is missing here.
#define FILETIMER_SKIP(reason)          \
  do {                                  \
    ::filetimer::testing::skip(reason); \
    return;                             \
  } while (false)
