// SPDX-License-Identifier: MIT
#include "timer_server/records/rendezvous_round.hpp"

#include <fmt/format.h>

namespace filetimer {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 32;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kMostNamed; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kMostNamed ? fmt::format("{} and {} more", text, ranks.size() - kMostNamed)
                                   : text;
}

}  // namespace filetimer
