// The handwritten digits that the example learns from: see data/README.md.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.hpp"

namespace filetimer::examples {

inline constexpr std::size_t kPixels = 64;
inline constexpr std::size_t kClasses = 10;

struct Digit {
  std::array<float, kPixels> pixels{};  // 0 (white) to 1 (black)
  std::uint8_t label = 0;
};

struct Digits {
  std::vector<Digit> training;
  std::vector<Digit> held_out;  // a fifth of the rows, never trained on
};

// Reads the CSV file, shuffles its rows and splits them. The same seed gives the same split in
// every rank. Errors name the file and the line.
Result<Digits> load_digits(const std::string& path, std::uint32_t seed);

}  // namespace filetimer::examples
