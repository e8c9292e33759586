// One history: a server, made-up workers and adversities, carried out from a list of operations and
// judged by the shared checker (tests/chaos/checker.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tests/support/histories.hpp"

namespace filetimer::sim {

using testing::Operation;
using testing::Operations;

// Returns the operations of a seed.
Operations operations_of(std::uint64_t seed);

// Carries out the operations in the empty folder `dir`, in this process, which must end afterwards.
// Returns what is wrong, a violation a line. `excused`: faults that are known, by name ("F2"),
// whose effects count as right.
std::string run_history(const Operations& operations, const std::string& dir,
                        const std::set<std::string>& excused, bool is_verbose);

}  // namespace filetimer::sim
