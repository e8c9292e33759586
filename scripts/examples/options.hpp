// The command line of digits_trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.hpp"

namespace filetimer::examples {

inline constexpr int kMostRanks = 64;

struct HangAt {
  int rank = -1;
  int step = -1;
};

struct Options {
  int ranks = 2;
  int steps = 300;
  std::uint32_t seed = 1;
  Duration timeout = std::chrono::seconds{30};
  HangAt hang;
  std::string data;
};

// Returns nothing if the program should run with `options`. Otherwise has printed --help or a usage
// error, and returns the exit status.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options);

}  // namespace filetimer::examples
