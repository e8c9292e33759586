// A hang as Chrome trace events, which Perfetto opens.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// Returns the lanes as a JSON object: a process for each host, a thread for each worker, and the
// scopes and marks in the order of their times. A scope that overlaps another one of its worker
// without being inside it has a thread of its own, because viewers drop it otherwise. Times are
// microseconds from the first verdict plus an hour, or plus more if a scope was open for longer:
// they are not negative there.
std::string trace_events(const Hang& hang);

}  // namespace filetimer::cli
