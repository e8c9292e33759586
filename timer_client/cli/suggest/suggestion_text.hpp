// What `timer_client suggest` prints.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "timer_client/cli/suggest/scope_history.hpp"
#include "timer_client/cli/suggest/suggestion.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {

// What there is to say where no scope has a duration.
inline constexpr std::string_view kNoDurations =
    "no scope has a duration: workers write theirs when they exit, and workers on the pipe, such "
    "as "
    "those of PyTorch's own client, have none; use filetimer's clients, such as "
    "filetimer.torch.FileTimerClient";
bool has_durations(const ScopeHistories& histories);

// Returns a table of the names, or kNoDurations, and, below it, lines for the names with missed
// deadlines, and for those of which scopes are left out.
std::string suggestions_table(const ScopeHistories& histories, const SuggestionRules& rules,
                              Screen screen);
// Returns a file that ConnectOptions::timeouts takes. Names without a suggestion are comments.
// `sources` names what was read.
std::string suggestions_toml(const ScopeHistories& histories, const SuggestionRules& rules,
                             const std::string& sources);
// Returns one object a line; of kNoDurations it says nothing.
std::string suggestions_json(const ScopeHistories& histories, const SuggestionRules& rules);

// Returns "would have been killed 3 times; all were released 1.20 s to 4 s late"; empty:
// no deadline was missed.
std::string missed_text(const MissedDeadlines& missed);
// Returns "5 scopes are left out: their workers waited for a worker that expired".
std::string waits_text(std::uint64_t waits);

}  // namespace filetimer::cli
