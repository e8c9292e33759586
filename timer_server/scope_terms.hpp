// What was asked for when a scope was opened or renewed, as the server judges and records it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// From the signal to SIGKILL; at most kLongestGraceMs.
using Grace = std::chrono::duration<std::uint32_t, std::milli>;

// Returns the grace in whole milliseconds, rounded up.
inline std::optional<Grace> grace_of(std::optional<Duration> grace) {
  if (!grace) {
    return std::nullopt;
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*grace).count();
  return Grace{static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, kLongestGraceMs))};
}

struct ScopeTerms {
  Instant acquired;
  Instant deadline;                // Instant::never(): none
  Duration timeout = kForever;     // as granted; kForever: none
  Duration asked = kForever;       // what --max-timeout may have cut
  std::optional<Grace> grace;      // none: one signal and no more
  std::uint32_t soft_ms = 0;       // from `acquired` to a warning; 0: by --warn-at
  int signal = 0;                  // 0 or less: no worker is killed
  pid_t tid = 0;                   // 0: unknown
  bool whole_process : 1 = false;  // the worker's end ends it in time
  bool is_idle : 1 = false;        // no scope: the worker's idle timeout, while it is in none
  bool spare_if_left : 1 = false;  // a worker that leaves it within the grace is spared
  bool is_paused : 1 = false;      // its time stands still
};

}  // namespace filetimer
