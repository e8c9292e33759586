// Starts the ranks of a job on this host and waits for them, as torchrun or mpirun would.
// Each rank executes the same program with RANK, LOCAL_RANK and WORLD_SIZE in its environment. A
// server reads the rank in /proc/PID/environ, which has only the variables from the execution.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include "common/result.hpp"
#include "exchange.hpp"

namespace filetimer::examples {

// The rank of a process that launch() has started.
struct Rank {
  int rank = 0;
  int world_size = 1;
  Exchange exchange;
};
// Returns nothing in the launcher.
Result<std::optional<Rank>> this_rank();

// Runs `ranks` copies of this program with the same arguments. Returns whether all succeeded, and
// prints how the others ended on standard error. When one fails, the others have kExitGrace to
// notice by themselves, and then are killed.
Result<bool> launch(int ranks, char* const* argv);

}  // namespace filetimer::examples
