// How many open scopes of each worker an `incident` lists: most are read between a deadline and its
// signal. What is beyond is counted.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace filetimer {

// Of all workers together, each with the same share. Of each worker the record has the few that say
// where it is all the same, where it has room for as many: a thousand scopes more cost a
// millisecond.
inline constexpr std::size_t kMaxIncidentScopes = 1024;
inline constexpr std::size_t kFewOfEachWorker = 4;
inline constexpr std::size_t kMaxIncidentScopesOfFew = 4096;

constexpr std::size_t incident_share(std::size_t workers) {
  const std::size_t count = std::max<std::size_t>(workers, 1);
  const std::size_t few =
      std::clamp(kMaxIncidentScopesOfFew / count, std::size_t{1}, kFewOfEachWorker);
  return std::max(kMaxIncidentScopes / count, few);
}

}  // namespace filetimer
