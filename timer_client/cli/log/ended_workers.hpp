// How long the scopes of workers took that have ended: the `worker_ended` records of a server's
// log.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "common/boot.hpp"
#include "common/run_folder.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer::cli {

struct EndedWorkers {
  StatisticsByName statistics;
  std::vector<std::string> problems;  // logs that could not be read
};

// Those that servers of `folder` have recorded in this boot, and that are still in the log of the
// last one. As `boot` the board has it: a container may show another one to this process.
EndedWorkers read_ended_workers(const RunFolder& folder, const BootId& boot);

}  // namespace filetimer::cli
