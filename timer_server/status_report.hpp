// The fields about the server in the answer to a status request and in the records of a start and a
// stop.
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
#include "timer_server/kill_path_check.hpp"

namespace filetimer {

// The state of a server at one moment.
struct ServerStatus {
  Duration uptime{};
  std::string dir;
  std::string fifo;
  std::string log;
  std::optional<pid_t> command_pid;
  std::optional<int> command_status;  // after its end: as the shell has it, 128+N for a signal
  Announcement announcement = Announcement::kNone;
  std::size_t workers = 0;
  std::size_t open_scopes = 0;
  std::uint64_t requests = 0;
  std::uint64_t rejected = 0;
  std::uint64_t expired = 0;
  std::uint64_t killed = 0;
  std::size_t kills_under_way = 0;
  std::size_t unkillable = 0;
  std::uint64_t lost_records = 0;
  std::size_t waiting_clients = 0;
  bool is_log_working = true;
  std::string pipe_trouble;  // why requests do not reach the server; empty: they do
};

// Adds the fields of the answer to a status request.
void write_status(JsonWriter& json, const ServerStatus& status, const Settings& settings,
                  const KillPath& kill_path);

struct StartCounts {
  std::size_t adopted_scopes = 0;
  std::size_t ended_scopes = 0;
};
// Returns the record of a start.
std::string start_record(const Core& core, const ServerStatus& status, const KillPath& kill_path,
                         const StartCounts& counts);
// Returns the record of a stop.
std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason);

}  // namespace filetimer
