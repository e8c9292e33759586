// An incident as an HTML file that needs nothing else, no network, no script and no font: a picture
// with a lane for each worker of the job, with its scopes as bars, on one time axis over all hosts;
// the page that `show` prints; and the events of all workers.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {

// report.html, which the build embeds. It has "{{name}}" where html_page() puts a text.
extern const std::string_view kReportHtml;

// Returns the file. `page` is that of expiry_page() about the cause.
std::string html_page(const Incident& incident, const std::string& page);

}  // namespace filetimer::cli
