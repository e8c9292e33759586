// What `show` prints about an incident: where the ranks were, and who expired first.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {

// Returns "in `forward`"; "in no scope" if it is empty.
std::string in_scope(const std::string& scope);
// Returns " for 29.6 s", or " for 12.0 s to 29.6 s" if the workers entered the scope apart; empty:
// it is not known.
std::string time_in_scope(const ScopeGroup& group);
// Returns "the odd one out", or what several are.
std::string odd_text(std::size_t workers);

// Returns "The odd one out: rank 4, in `forward`."; empty: none is.
std::string odd_sentence(const JobIncident& incident);
// Returns "rank 0 (pid 4711, t) expired first, in `exchange`, and may have waited for it."; empty
// where the first to expire is odd itself, or none is.
std::string first_waited_sentence(const JobIncident& incident);

// Adds the groups, and what is not in them. `shown`, a worker, is pointed at; null: none is.
void add_groups(Page& page, const JobIncident& incident, const WorkerName* shown);

// Adds the whole section of `show`: of the expiry `id` of the worker `shown`.
void add_ranks_at_expiry(Page& page, const JobIncident& incident, const std::string& id,
                         const WorkerName& shown);

}  // namespace filetimer::cli
