// What `timer_client list` prints: open scopes and statistics, as tables and as JSON lines.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/commands/stragglers.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {

std::string scopes_table(std::span<const ListedScope> scopes, Instant now, Screen screen);
// Returns the scope as one JSON object.
std::string scope_json(const ListedScope& scope, Instant now);

std::string statistics_table(const StatisticsByName& statistics, Screen screen);
std::string statistics_json(const std::string& scope, const ScopeStatistics& statistics);

// A straggler's `rank` is its place in `workers`.
std::string stragglers_table(std::span<const Straggler> stragglers,
                             std::span<const ListedWorker> workers, Screen screen);
// `host` is that of all workers.
std::string straggler_json(const Straggler& straggler, const ScopeOwner& owner,
                           std::string_view host);

}  // namespace filetimer::cli
