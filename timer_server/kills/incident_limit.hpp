// How many open scopes of each worker an `incident` lists: most are read between a deadline and its
// signal. What is beyond is counted.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "common/clock.hpp"
#include "common/page_reader.hpp"

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

// How many ended scopes an `incident` lists, each worker with the same share, and how long before
// it they may have ended.
inline constexpr std::size_t kMaxIncidentEndedScopes = 8192;
inline constexpr Duration kIncidentPast = std::chrono::minutes{10};

// Shortens `ended` to the scopes that a worker of `workers` has in an incident at `when`: of those
// that ended within kIncidentPast before it, or since, the latest. Returns how many others of them
// there are.
std::size_t shorten_ended_scopes(EndedScopesByName& ended, Instant when, std::size_t workers);

}  // namespace filetimer
