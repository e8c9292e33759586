// What `log` says about a hang of many hosts below its table: who hung first over all of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/log/hangs.hpp"

namespace filetimer::cli {

// Of all that `finder` has, which finish() has closed. Empty where nobody hung.
std::string hangs_page(const HangFinder& finder, bool colour);

}  // namespace filetimer::cli
