// Scopes with a verdict: their terms, whether the worker has left them, and their end.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "timer_server/core.hpp"
#include "timer_server/watch/deadline_scan.hpp"

namespace filetimer {

// Returns the scope on which a scan has given the verdict; nothing if its page was cut short.
std::optional<Expiry> expiry_of(Core& core, const DeadlineScan::DueScope& due);

// Returns when the scope was released, or renewed, since its verdict.
std::optional<Instant> released_at(Core& core, const Process& process, const Expiry& expiry);

// Ends the worker's other scopes of the pipe before its first signal: until then a release can
// cancel the kill. Those on a page of its own end with the worker. `is_final`: the signal is
// SIGKILL, or SIGKILL will follow; otherwise the scopes that are due stay open, and are judged when
// the kill has ended. Returns the names of the scopes that the kill cancels.
std::vector<std::string> cancel_scopes(Core& core, const Process& process, bool is_final);

// Ends the verdicts of a kill of the worker that has ended. Returns whether the worker has scopes
// to be judged.
bool finish_scopes(Core& core, Worker& worker, std::span<const Expiry> expiries);

}  // namespace filetimer
