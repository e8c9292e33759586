// The part of `show`'s page that says where everybody was: who waited on whom.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "timer_client/cli/log/expiry.hpp"
#include "timer_client/cli/log/whereabouts.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {

// The groups, and what is not in them; where `marked` is, is said.
void add_places(Page& page, const Hang& hang, const std::vector<ScopeGroup>& groups,
                const std::optional<WorkerAt>& marked = {});
// What makes times of several hosts doubtful. Nothing where nothing does.
void add_doubts(Page& page, const Hang& hang);

void add_whereabouts(Page& page, const Expiry& expiry);

}  // namespace filetimer::cli
