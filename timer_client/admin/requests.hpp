// Control requests, what their answers say, and how long a client waits for them. An answer of
// ask() is a JSON object; a key that it lacks counts as zero or empty.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <filetimer/admin.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "common/wire.hpp"
#include "timer_client/admin/ask.hpp"

namespace filetimer {

// A mode of shutdown as users write it in the shell, and its keys in the request.
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

// Returns the wait in seconds, for the request.
double wait_seconds(Duration wait);

wire::Question question_of(std::string_view request, Duration wait);
wire::Question question_of(ShutdownMode mode, Duration wait);
wire::Question question_of(const RendezvousOptions& options);

// The scopes and workers that a "refused", "timed_out" or "waiting" answer lists.
struct Obstacles {
  std::size_t open_scope_count = 0;
  std::vector<OpenScope> scopes;
  struct Worker {
    pid_t pid = 0;
    std::string comm;
    std::optional<int> rank;
  };
  std::vector<Worker> workers;
};
Obstacles obstacles_in(std::string_view answer);
// Returns "'step' of pid 12 (rank 3), 'save' of pid 13 and 4 more"; empty when none is listed.
std::string open_scopes_text(const Obstacles& obstacles);

// Returns the wait that a "granted" answer allows.
std::optional<Duration> granted_in(std::string_view answer);
ServerStatus status_in(const std::string& answer);
DrainResult drain_in(std::string_view answer);
RendezvousResult rendezvous_in(std::string_view answer);
// Returns "0 (pid 11), 1 (pid 12) and 6 more".
std::string members_text(const RendezvousResult& met);

// Return the exception for a reply without success.
ServerBusy busy_in(const Reply& reply);
RendezvousTimeoutError rendezvous_timeout_in(const Reply& reply, const std::string& name);

}  // namespace filetimer
