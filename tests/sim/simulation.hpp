// One history: a server, made-up workers and adversities, carried out from a list of operations and
// judged by the shared checker (tests/chaos/checker.hpp) and by a model of each scope.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer::sim {

// "rel@3 0 1": the worker 0 releases its scope 1 at the third system call of the server from now
// on. Without @ it does so at once.
struct Operation {
  std::string name;
  int at_call = 0;
  std::vector<int> arguments;
  [[nodiscard]] int argument(std::size_t index) const {
    return index < arguments.size() ? arguments[index] : 0;
  }
};
using Operations = std::vector<Operation>;

std::string text_of(const Operations& operations);
Operations parse(std::string_view text);

// Returns the operations of a seed.
Operations operations_of(std::uint64_t seed);

// Carries out the operations in the empty folder `dir`, in this process, which must end afterwards.
// Returns what is wrong, a violation a line. `excused`: faults that are known, by name ("F2"),
// whose effects count as right.
std::vector<std::string> run_history(const Operations& operations, const std::string& dir,
                                     const std::set<std::string>& excused, bool is_verbose);

}  // namespace filetimer::sim
