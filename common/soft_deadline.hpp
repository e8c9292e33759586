// The soft deadline of a scope: the time of its warning, before its deadline. The worker computes
// it to find out whether the server would sleep past it, the server to warn in time. Both call
// these functions on the same words of memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// The largest value of Slot::soft_ms, about 49 days.
inline constexpr std::chrono::milliseconds kLongestSoft{0xFFFF'FFFF};

// Returns the value of Slot::soft_ms: whole milliseconds, rounded up, so that no warning is early.
inline std::uint32_t soft_ms(Duration after) {
  return static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(after).count());
}

// Returns the value of Board::warn_at for a fraction over 0 and below 1: in parts of 2^32, rounded
// up.
inline std::uint32_t warn_at_word(double fraction) {
  constexpr double kWhole = 4294967296.0;
  return static_cast<std::uint32_t>(std::min(std::ceil(fraction * kWhole), kWhole - 1));
}

// Returns the part `warn_at` / 2^32 of `span` (ns, less than 2^62), rounded up. The whole product
// does not fit into 64 bits.
constexpr std::int64_t part_of(std::int64_t span, std::uint32_t warn_at) {
  const auto whole = static_cast<std::uint64_t>(span);
  const std::uint64_t high = (whole >> 32) * warn_at;
  const std::uint64_t low = (whole & 0xFFFF'FFFF) * warn_at + 0xFFFF'FFFF;
  return static_cast<std::int64_t>(high + (low >> 32));
}

// Returns the soft deadline of a scope that was opened or renewed at `started` and is due at `due`
// (slot_word::kNoDeadline and more: never). The scope's own soft deadline has precedence over the
// server's --warn-at; 0 is none of either. Returns never() if the scope has no soft deadline before
// `due`.
constexpr Instant soft_time(Instant started, Instant due, std::uint32_t soft_ms,
                            std::uint32_t warn_at) {
  Instant soft = Instant::never();
  if (soft_ms != 0) {
    soft = started + std::chrono::milliseconds{soft_ms};
  } else if (warn_at != 0 && started < due && due.ns < slot_word::kNoDeadline) {
    soft = started + Duration{part_of(due.ns - started.ns, warn_at)};
  }
  return soft < due ? soft : Instant::never();
}

}  // namespace filetimer
