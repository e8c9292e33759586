// The output of `timer_client suggest`.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "timer_client/cli/suggest/scope_history.hpp"
#include "timer_client/cli/suggest/suggestion.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {

// The text for logs in which no scope has a duration.
inline constexpr std::string_view kNoDurations =
    "no scope has a duration: workers write theirs when they exit, and workers on the pipe, such "
    "as "
    "those of PyTorch's own client, have none; use filetimer's clients, such as "
    "filetimer.torch.FileTimerClient";

struct SuggestedScope {
  std::string_view scope;
  const ScopeHistory* history;
  Durations durations;
  Suggestion suggestion;
};
// Views the histories.
struct Suggestions {
  std::vector<SuggestedScope> scopes;   // by name
  std::vector<std::string> lost_order;  // see keep_order_of_today()

  [[nodiscard]] bool have_durations() const;
};
Suggestions suggestions_for(const ScopeHistories& histories, const SuggestionRules& rules);

// Returns a table of the names, or kNoDurations, and, below it, lines for the names with missed
// deadlines.
std::string suggestions_table(const Suggestions& suggestions, Screen screen);
// Returns a file that ConnectOptions::timeouts takes. Names without a suggestion are comments.
// `sources` names what was read.
std::string suggestions_toml(const Suggestions& suggestions, const std::string& sources);
// Returns one object a line; of kNoDurations it says nothing.
std::string suggestions_json(const Suggestions& suggestions);

// Returns "would have been killed 3 times; all were released 1.20 s to 4 s late"; empty:
// no deadline was missed.
std::string missed_text(const MissedDeadlines& missed);

}  // namespace filetimer::cli
