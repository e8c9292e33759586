// One history: a server, made-up workers and adversities, carried out from a list of operations.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/histories.hpp"

namespace filetimer::sim {

using testing::Operation;
using testing::Operations;

// Returns the operations of a seed.
Operations operations_of(std::uint64_t seed);

// Carries out the operations in the empty folder `dir`, in this process, which must end afterwards.
// Returns what is wrong, a violation a line, and leaves the history and the server's folder `run`.
std::string run_history(const Operations& operations, const std::string& dir, bool is_verbose);

}  // namespace filetimer::sim
