// Control requests as lines of the request pipe, and how long a client waits for their answers.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <filetimer/admin.hpp>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "common/wire.hpp"

namespace filetimer {

inline constexpr const char* kRpcTimeoutVariable = "FILETIMER_RPC_TIMEOUT";
inline constexpr Duration kDefaultRpcTimeout = std::chrono::seconds{60};

// Returns $FILETIMER_RPC_TIMEOUT, else kDefaultRpcTimeout. An error quotes the variable.
Result<Duration> rpc_timeout_of_environment();

// A mode of shutdown as users write it in the shell, and its keys in the line.
struct ShutdownWords {
  ShutdownMode mode;
  std::string_view word;
  std::string_view graceful;
  bool force;
};
inline constexpr std::array<ShutdownWords, 6> kShutdownModes{{
    {ShutdownMode::kGraceful, "graceful", "scopes", false},
    {ShutdownMode::kGracefulOrNow, "graceful_or_now", "scopes", true},
    {ShutdownMode::kWorkers, "workers", "workers", false},
    {ShutdownMode::kWorkersOrNow, "workers_or_now", "workers", true},
    {ShutdownMode::kIfIdle, "if_idle", "", false},
    {ShutdownMode::kNow, "now", "", true},
}};

// Returns the wait in seconds, for the line.
double wait_seconds(Duration wait);

// Return the request, without the name of its reply pipe. `options` must outlive the request.
wire::Question question_of(std::string_view request, Duration wait);
wire::Question question_of(ShutdownMode mode, Duration wait);
wire::Question question_of(const RendezvousOptions& options);

}  // namespace filetimer
