// A hang as one HTML file that needs nothing else: no network, no script, no font.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/report/hang.hpp"

namespace filetimer::cli {

// Returns the file. `logs`: where the records come from, for the last line.
std::string html_page(const Hang& hang, const std::string& logs);

}  // namespace filetimer::cli
