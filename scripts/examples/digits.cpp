// SPDX-License-Identifier: MIT
#include "digits.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <random>
#include <string_view>
#include <utility>

namespace filetimer::examples {
namespace {

constexpr unsigned kDarkest = 16;
constexpr std::size_t kHeldOutOneIn = 5;
constexpr std::size_t kLeastRows = 80;  // 64 to train on, one for each of kMostRanks

// The number at the front of `rest`, which moves past it and past the comma that follows.
bool take_number(std::string_view& rest, unsigned highest, unsigned& number) {
  const char* const last = rest.data() + rest.size();
  const auto [end, ec] = std::from_chars(rest.data(), last, number);
  if (ec != std::errc{} || number > highest || (end != last && *end != ',')) {
    return false;
  }
  const auto taken = static_cast<std::size_t>(end - rest.data());
  rest.remove_prefix(end == last ? taken : taken + 1);
  return true;
}

bool parse_row(std::string_view row, Digit& digit) {
  unsigned number = 0;
  for (float& pixel : digit.pixels) {
    if (!take_number(row, kDarkest, number)) {
      return false;
    }
    pixel = static_cast<float>(number) / static_cast<float>(kDarkest);
  }
  if (!take_number(row, kClasses - 1, number)) {
    return false;
  }
  digit.label = static_cast<std::uint8_t>(number);
  return row.empty();
}

}  // namespace

Result<Digits> load_digits(const std::string& path, std::uint32_t seed) {
  std::ifstream file(path);
  if (!file) {
    return system_error(fmt::format("cannot open {}", path));
  }
  std::vector<Digit> rows;
  for (std::string line; std::getline(file, line);) {
    if (!parse_row(line, rows.emplace_back())) {
      return failure(
          fmt::format("{}:{}: expected 64 numbers from 0 to 16 and a digit, got '{:.40}'", path,
                      rows.size(), line));
    }
  }
  if (rows.size() < kLeastRows) {
    return failure(fmt::format("{}: expected at least {} rows", path, kLeastRows));
  }
  // Neighbouring rows come from one writer. By hand, as std::shuffle may differ between libraries.
  std::mt19937 random(seed);
  for (std::size_t i = rows.size() - 1; i > 0; --i) {
    std::swap(rows[i], rows[random() % (i + 1)]);
  }
  const auto middle =
      rows.begin() + static_cast<std::ptrdiff_t>(rows.size() - rows.size() / kHeldOutOneIn);
  return Digits{{rows.begin(), middle}, {middle, rows.end()}};
}

}  // namespace filetimer::examples
