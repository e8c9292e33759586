// One expiry as a page for an engineer at 3 a.m.: first what happened, in one sentence, then who,
// where everybody was, what the kernel says, what was done and how it ended.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/log/expiry.hpp"

namespace filetimer::cli {

std::string expiry_page(const Expiry& expiry, bool colour);

}  // namespace filetimer::cli
