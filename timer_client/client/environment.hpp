// What the environment says that overrides the code. An unexpected value is a notice, not an error:
// a typo must not end a training.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>
#include <optional>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"

namespace filetimer {

// Returns the value of a variable; empty: it is not set.
std::string_view environment_word(const char* name);
// Returns whether $FILETIMER switches the client off.
bool is_switched_off();
// Returns what $FILETIMER_MISSING says; nothing if it is not set, or wrong.
std::optional<ConnectOptions::Missing> missing_by_environment();

// How long a control request waits for its answer, without a word of the user.
inline constexpr Duration kDefaultRpcTimeout = std::chrono::seconds{60};
// Returns $FILETIMER_RPC_TIMEOUT, else kDefaultRpcTimeout. An error quotes the variable.
Result<Duration> rpc_timeout_of_environment();

}  // namespace filetimer
