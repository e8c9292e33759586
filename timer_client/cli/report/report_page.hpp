// The pages of an incident: an HTML file that needs nothing else, no network, no script and no
// font, and Chrome trace events.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/log/expiry_page.hpp"
#include "timer_client/cli/report/lanes.hpp"

namespace filetimer::cli {

// Returns the file. `cause` has what it says first. `logs`: where the records come from, for the
// last line.
std::string html_page(const Picture& picture, const ExpiryPage& cause, const std::string& logs);

// Returns the lanes as the JSON object that Perfetto opens: a process for each host, a thread for
// each row of a worker, and the scopes and moments in the order of their times. Times are
// microseconds from the first verdict plus an hour, or plus more if a scope was open for longer:
// they are not negative there.
std::string trace_events(const Picture& picture);

}  // namespace filetimer::cli
