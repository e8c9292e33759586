// The part of `show`'s page that says where everybody was: who waited on whom.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/cli/expiry.hpp"
#include "timer_client/cli/page.hpp"

namespace filetimer::cli {

void add_whereabouts(Page& page, const Expiry& expiry);

}  // namespace filetimer::cli
