// The part of `show`'s page that says where everybody was: who waited on whom.
// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "timer_client/cli/expiry.hpp"
#include "timer_client/cli/page.hpp"
#include "timer_client/cli/whereabouts.hpp"

namespace filetimer::cli {

// The groups, and what is not in them; of `expiry` it is marked where it is.
void add_places(Page& page, const Expiry& expiry, const std::vector<ScopeGroup>& groups);
// What makes times of several hosts doubtful. Nothing where nothing does.
void add_doubts(Page& page, const Hang& hang);

void add_whereabouts(Page& page, const Expiry& expiry);

}  // namespace filetimer::cli
