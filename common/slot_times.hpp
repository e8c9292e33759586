// The times that follow from the words of a slot: both the worker, which computes whether the
// server would sleep past one of them, and the server read them here.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// Returns the deadline that an open word is; never() for a word without one.
inline Instant deadline_of_word(std::int64_t word) {
  return word >= slot_word::kNoDeadline ? Instant::never() : Instant{word};
}

// Returns the time in a field of a slot, at the earliest the boot, so that the difference of two
// times of slots fits into 64 bits.
inline Instant start_in(const std::atomic<std::int64_t>& field) {
  return {std::max<std::int64_t>(field.load(std::memory_order_relaxed), 0)};
}

// Returns when a scope is due that has the open `word` and the deadline `deadline` and was opened
// or renewed at `started`, under a --max-timeout (kForever: none), which counts from `started`, or
// from the pause.
Instant due_time(Instant deadline, std::int64_t word, Instant started, Duration max_timeout);
// Returns the same for a slot with the open word `word`.
Instant due_time(const Slot& slot, std::int64_t word, Duration max_timeout);

// Returns the soft deadline of a slot with an open word and the deadline `due`: see
// soft_deadline.hpp. Returns never() for a paused scope, and for one whose soft deadline had passed
// before its last pause.
Instant soft_time_of(const Slot& slot, std::int64_t word, Instant due, std::uint32_t warn_at);

}  // namespace filetimer
