// --realtime: a fixed priority above all ordinary work, for the threads on the way from a deadline
// to its signal. Nothing that is forked or started afterwards inherits it.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/result.hpp"

namespace filetimer {

// For the calling thread: SCHED_RR at its lowest priority.
Status enter_realtime();

}  // namespace filetimer
