// The metrics of the server in the text format of Prometheus (exposition format 0.0.4). Nothing
// here does input or output, or reads a clock.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/clock.hpp"
#include "timer_server/scopes/scope_counts.hpp"

namespace filetimer {

// The values of one moment.
struct Metrics {
  using Counts = CountsByScope::Values;

  std::string dir;  // tells the servers of a host apart
  std::string version;
  bool is_running = true;              // false: the server ends
  std::int64_t started_wall_ns = 0;    // Unix time
  std::int64_t collected_wall_ns = 0;  // the same, of the values

  Counts expired;
  LatenessCounts lateness;
  Duration longest_lateness{};
  Counts killed;
  Counts unkillable;
  Counts warned;
  Counts deferred;                 // for a halted worker
  std::uint64_t deferred_all = 0;  // of all scopes, for time that the server missed
  Counts released_late;
  std::uint64_t requests = 0;
  std::uint64_t rejected = 0;
  std::uint64_t lost_records = 0;

  std::size_t workers = 0;
  std::size_t open_scopes = 0;
  std::size_t kills_under_way = 0;
  std::size_t unkillable_workers = 0;
  bool is_log_working = true;
  std::uint64_t waiting_records = 0;
  std::size_t waiting_bytes = 0;
  Duration log_lag{};
};

// Returns the text, which ends with a newline.
std::string metrics_text(const Metrics& metrics);

}  // namespace filetimer
