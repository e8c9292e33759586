// A clock that a test moves, instead of waiting: for programs that link filetimer_moved_clock.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/clock.hpp"

namespace filetimer::testing {

// Makes all later readings of CLOCK_MONOTONIC by this process later by `time`. Waits of condition
// variables take the time that they would take without.
void move_clock(Duration time);

}  // namespace filetimer::testing
