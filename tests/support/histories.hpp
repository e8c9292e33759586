// Random lists of operations for a machine under test: as text, of a seed, run in a process of
// their own, and shortened when they fail. Used by the simulated server and the slot machine.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace filetimer::testing {

// "rel@3 0 1": the operation `rel` with two arguments, at the third system call from now on. What
// is not possible does nothing, so every part of a list is one, too.
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

// How often an operation comes, and the range of each of its arguments.
struct Kind {
  const char* name;
  int weight;
  std::vector<std::pair<int, int>> ranges;
};
using Random = std::mt19937_64;
int between(Random& random, int from, int to);
// Returns an operation of one of the kinds, each as often as its weight says.
Operation random_operation(Random& random, const std::vector<Kind>& kinds,
                           const std::vector<int>& weights);

// Throws what is wrong unless it holds.
template <class... Values>
void expect(bool holds, fmt::format_string<Values...> what, Values&&... values) {
  if (!holds) {
    throw std::runtime_error(fmt::format(what, std::forward<Values>(values)...));
  }
}

// Calls `body` in a child process. Returns the lines that it reports, each a violation. A crash, an
// exception and a hang are violations, too.
std::vector<std::string> run_in_child(const std::function<std::string()>& body,
                                      bool by_clone = false);

// Drops operations while the list fails.
Operations shorten(Operations operations, const std::function<bool(const Operations&)>& fails);

// A line of a file of lists that have found a fault: NAME WORDS | OPERATIONS.
struct Found {
  std::string name;
  std::string words;
  Operations operations;
};
std::vector<Found> read_found(const char* path);

}  // namespace filetimer::testing
