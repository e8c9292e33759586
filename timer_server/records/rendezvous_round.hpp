// A round of a rendezvous, as it is recorded.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.hpp"

namespace filetimer {

struct RendezvousMember {
  int rank = 0;
  pid_t pid = 0;             // as the worker gave it, in its own pid namespace
  std::uint64_t client = 0;  // the client that waits for the round
};

struct RendezvousRound {
  std::string name;
  std::uint64_t number = 0;  // counts the rounds of the name, from 1
  int world = 0;
  Instant begun;
  std::vector<RendezvousMember> joined;  // by rank
  std::vector<int> missing;
  std::vector<int> left;  // missing ranks that had joined and left
};

}  // namespace filetimer
