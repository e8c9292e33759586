// SPDX-License-Identifier: MIT
#include "timer_server/kills/incident_limit.hpp"

#include <functional>
#include <vector>

namespace filetimer {

std::size_t shorten_ended_scopes(EndedScopesByName& ended, Instant when, std::size_t workers) {
  const Instant since{std::max<std::int64_t>(when.ns - Duration{kIncidentPast}.count(), 0)};
  std::vector<Instant> times;
  for (const auto& [name, scopes] : ended) {
    for (const EndedReading& scope : scopes) {
      if (scope.ended >= since) {
        times.push_back(scope.ended);
      }
    }
  }
  const std::size_t share = kMaxIncidentEndedScopes / std::max<std::size_t>(workers, 1);
  Instant first = since;
  if (times.size() > share) {
    if (share == 0) {
      ended.clear();
      return times.size();
    }
    const auto last_kept = times.begin() + static_cast<std::ptrdiff_t>(share) - 1;
    std::ranges::nth_element(times, last_kept, std::ranges::greater{});
    first = *last_kept;
  }
  std::size_t kept = 0;
  for (auto& [name, scopes] : ended) {
    std::erase_if(scopes, [&](const EndedReading& scope) { return scope.ended < first; });
    kept += scopes.size();
  }
  std::erase_if(ended, [](const auto& entry) { return entry.second.empty(); });
  return times.size() - std::min(kept, times.size());
}

}  // namespace filetimer
