// Starts the ranks of a job on this host and waits for them, as torchrun or mpirun would.
// Each rank is the same program, started anew with RANK, LOCAL_RANK and WORLD_SIZE in its
// environment: /proc/PID/environ, where a server looks up a worker's rank, only ever shows what a
// program was started with.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include "common/result.hpp"
#include "exchange.hpp"

namespace filetimer::examples {

// Who this process is, when it was started by launch().
struct Rank {
  int rank = 0;
  int world_size = 1;
  Exchange exchange;
};
// Nothing when it was not: it is the launcher then.
Result<std::optional<Rank>> this_rank();

// Runs `ranks` copies of this program with the same arguments. True when all ended well. Says on
// standard error how those that did not ended. When one fails, the others get kLastWords to notice
// by themselves; then they are killed.
Result<bool> launch(int ranks, char* const* argv);

}  // namespace filetimer::examples
