// A hang as one HTML file that needs nothing else: no network, no script, no font.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// Returns the file. `logs`: where the records come from, for the last line.
std::string html_page(const Hang& hang, const std::string& logs);

// Returns the lanes as Chrome trace events, which Perfetto opens: a process for each host, a thread
// for each worker, microseconds from the first verdict plus an hour (times are not negative there).
std::string trace_events(const Hang& hang);

}  // namespace filetimer::cli
