// How long the scopes of workers took that have ended: the `worker_ended` records of a server's
// log.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "common/boot.hpp"
#include "common/json_fields.hpp"
#include "common/run_folder.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer::cli {

struct EndedWorkers {
  StatisticsByName statistics;
  std::vector<std::string> problems;  // logs that could not be read
};

// Returns the statistics in an object of the list `scopes` of a `worker_ended` record.
ScopeStatistics read_statistics(simdjson::dom::object scope);

// Those that servers of `folder` have recorded in this boot, and that are still in the log of the
// last one. As `boot` the board has it: a container may show another one to this process.
EndedWorkers read_ended_workers(const RunFolder& folder, const BootId& boot);

}  // namespace filetimer::cli
