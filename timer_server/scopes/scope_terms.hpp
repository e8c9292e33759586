// The terms of a scope: what was requested when it was opened or renewed, and what was granted.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// The grace period, from the first signal to SIGKILL; at most kLongestGraceMs.
using Grace = std::chrono::duration<std::uint32_t, std::milli>;

// Returns the grace period in whole milliseconds, rounded up.
inline std::optional<Grace> grace_of(std::optional<Duration> grace) {
  if (!grace) {
    return std::nullopt;
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*grace).count();
  return Grace{static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, kLongestGraceMs))};
}

struct ScopeTerms {
  Instant acquired;
  Instant deadline;             // Instant::never(): none
  Duration timeout = kForever;  // as granted; kForever: none
  Duration asked = kForever;    // as requested; --max-timeout may have cut it
  // The timeout in the code, if a file of the worker's replaced it; kForever: none.
  std::optional<Duration> code_timeout;
  std::optional<Grace> grace;      // none: one signal, no SIGKILL
  std::uint32_t soft_ms = 0;       // from `acquired` to a warning; 0: by --warn-at
  int signal = 0;                  // the first signal; 0 or less: none
  pid_t tid = 0;                   // 0: unknown
  bool whole_process : 1 = false;  // the end of the worker releases it
  bool is_idle : 1 = false;        // not a scope: the idle timeout of a worker in no scope
  bool signal_first : 1 = false;  // the signal comes at the timeout, and the deadline after `grace`
  bool is_paused : 1 = false;
};

// A scope as it stood at one moment.
struct ScopeView {
  std::string name;
  ScopeTerms terms;
};

}  // namespace filetimer
