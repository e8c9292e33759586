// The output of `list`, `status` and `dump`, apart from the commands, for tests.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>

#include "common/clock.hpp"
#include "common/json_fields.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/commands/stragglers.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {

// Each `..._json` returns one object a line. A table without rows is empty.
std::string scopes_table(std::span<const ListedScope> scopes, Instant now, Screen screen);
std::string scopes_json(std::span<const ListedScope> scopes, Instant now);

std::string statistics_table(const StatisticsByName& statistics, Screen screen);
std::string statistics_json(const StatisticsByName& statistics);

// A straggler's `rank` is its place in `workers`.
std::string stragglers_table(std::span<const Straggler> stragglers,
                             std::span<const ListedWorker> workers, Screen screen);
std::string stragglers_json(std::span<const Straggler> stragglers,
                            std::span<const ListedWorker> workers);

// Returns the keys of the server's answer in their order, and its groups below them.
std::string status_page(simdjson::dom::object answer);

// Returns the workers of a `done` answer to the request `dump` (docs/protocol.md) as text. Workers
// in the same place are one group: of the same job, in the same scopes, and with the same frames on
// the stacks of their main threads. The smallest group comes first: the worker that is elsewhere is
// on top.
std::string dump_page(simdjson::dom::object answer, bool colour);

}  // namespace filetimer::cli
