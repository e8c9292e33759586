// What the server tells of itself: in the answer to a status request, in the records of its start
// and stop, and in its metrics.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// The state of a server at one moment.
struct ServerStatus {
  const Counters& counters;
  std::string dir{};
  ClockReading started{};
  ClockReading now{};
  std::optional<pid_t> command_pid{};
  std::optional<int> command_status{};  // after its end: as the shell has it, 128+N for a signal
  Announcement announcement = Announcement::kNone;
  std::size_t workers = 0;
  std::size_t open_scopes = 0;
  std::uint64_t rejected = 0;
  std::size_t kills_under_way = 0;
  std::size_t unkillable = 0;  // workers that are alive after SIGKILL
  std::uint64_t lost_records = 0;
  std::size_t waiting_clients = 0;
  bool is_log_working = true;
  RecordLog::Backlog backlog{};
};

// What the system lets the server do to its workers.
struct KillPath {
  // Whether a signal can be sent through a pidfd; nothing: not tried.
  std::optional<bool> signal;
  bool ptrace = false;         // whether processes of the server's user can be traced
  bool kernel_stacks = false;  // whether /proc/PID/stack can be read
  std::string trouble;         // why `signal` is not true, on one line
};

// Tries it on the server itself, when it starts, so that a missing permission is reported then and
// not at the first hang.
KillPath check_kill_path();

// Adds the fields of the answer to a status request.
void write_status(JsonWriter& json, const Core& core, const ServerStatus& status,
                  const KillPath& kill_path);

struct StartCounts {
  std::size_t adopted_scopes = 0;
  std::size_t ended_scopes = 0;
};
// Returns the record of a start.
std::string start_record(const Core& core, const KillPath& kill_path, const StartCounts& counts);
// Returns the record of a stop.
std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason);

}  // namespace filetimer
