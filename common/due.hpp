// The rules of time: when a scope is due and when it is warned about, from the words of its slot,
// the settings of the server, and the time that was lost since it began. Pure functions: the worker
// computes with them whether the server would sleep past a deadline, and the server judges by them.
//
//   due = deadline                     of the word: opened or renewed at `started` + timeout
//   due = min(due, started + --max-timeout)     (from the pause, while the scope is paused)
//   due = later, by the time lost since `started`: that of the server, then that of the worker
//   due = later, after a pause, by what was left at the pause of the time lost before
//   due = signal + grace, if the scope is signalled first (slot_flag::kSignalFirst): its signal
//         comes when the scope would be due otherwise
//   warned at `started` + soft, if that is before all of this
//
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/clock.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// --- the words of a slot ---

// Returns the deadline that an open word is; never() for a word without one.
inline Instant deadline_of_word(std::int64_t word) {
  return word >= slot_word::kNoDeadline ? Instant::never() : Instant{word};
}

// Returns the time in a field of a slot, at the earliest the boot, so that the difference of two
// times of slots fits into 64 bits.
inline Instant start_in(const std::atomic<std::int64_t>& field) {
  return {std::max<std::int64_t>(field.load(std::memory_order_relaxed), 0)};
}

// Returns when the scope of a slot with the open word `word` was opened, renewed, paused or resumed
// last.
Instant last_change_of(const Slot& slot, std::int64_t word);

// Returns when a scope is due that has the open `word` and the deadline `deadline` and was opened
// or renewed at `started`, under a --max-timeout (kForever: none), which counts from `started`, or
// from the pause. No time was lost.
inline Instant due_time(Instant deadline, std::int64_t word, Instant started,
                        Duration max_timeout) {
  const Instant since = slot_word::is_paused(word) ? Instant{word - slot_word::kPaused} : started;
  return std::min(deadline, since + max_timeout);
}
// Returns the same for a slot with the open word `word`.
inline Instant due_time(const Slot& slot, std::int64_t word, Duration max_timeout) {
  return due_time(deadline_of_word(word), word, start_in(slot.started), max_timeout);
}

// Returns the timeout of a scope with the open word `word` that asked for `asked`, as granted;
// kForever: none.
inline Duration timeout_of(Duration asked, std::int64_t word, Duration max_timeout) {
  return std::min(slot_word::is_paused(word) ? kForever : asked, max_timeout);
}
// Returns the same for a slot with the open word `word`.
inline Duration timeout_of(const Slot& slot, std::int64_t word, Duration max_timeout) {
  const std::int64_t asked = slot.timeout.load(kRelaxed);
  return timeout_of(asked < 0 ? kForever : Duration{asked}, word, max_timeout);
}

// --- lost time ---

// A scope from its opening or last renewal on.
struct ScopeSpan {
  Instant started;
  Duration timeout = kForever;  // as granted; kForever: none
  Duration carried{};           // what it gets, after a pause, for times lost before that
};

// Returns the span of a scope with the open word `word` that was opened or renewed at `started`.
// A renewal writes `started` before the word, so `started` may be of the next span; deadline -
// timeout is not.
inline ScopeSpan span_of(Instant started, std::int64_t word, Duration timeout) {
  const bool has_both = timeout.count() <= word;
  return {has_both ? std::min(started, Instant{word - timeout.count()}) : started, timeout};
}

// Times in which the server could not run, or a worker was halted. A deadline that passed in one of
// them says nothing about the worker.
//
//   LostTime lost;
//   lost.add({55s}, {60s});  // the server ran again at 60 s
//   lost.extended({61s}, {.started = {50s}, .timeout = 30s});  // 66 s
class LostTime {
 public:
  // The most times that are kept. Then two neighbours are merged: those that together are shortest
  // in proportion to how long ago they were.
  static constexpr std::size_t kMaxTimes = 64;

  // Notes that time was lost from `from` until `until`, which is not before that of any earlier
  // call. What earlier calls have noted counts once. Returns what they had not noted.
  Duration add(Instant from, Instant until);
  // Returns the deadline `due` of a scope, later by what was lost since the scope began. Each time
  // adds its length, at most the timeout, counted from its end if the deadline had passed then. All
  // of them add `most` at most. What was lost from `until` on does not count.
  [[nodiscard]] Instant extended(Instant due, const ScopeSpan& span, Duration most = kForever,
                                 Instant until = Instant::never()) const;
  // Returns the end of the last time that was lost; Instant{}: none was.
  [[nodiscard]] Instant end() const { return times_.empty() ? Instant{} : times_.back().until; }

 private:
  struct Time {
    Instant from;
    Instant until;
    Duration length{};
  };
  std::vector<Time> times_;  // the oldest first
};

// The lost time of the server that is given to one scope, at most, in timeouts of the scope: so a
// server that always wakes late still acts.
inline constexpr int kMostTimeoutsGiven = 4;

// Returns when a scope is due that is due at `due` if no time is lost. `server`: the time that the
// server lost. `worker`: the time in which the scope's worker was halted. What was lost from
// `until` on does not count.
Instant due_after_losses(Instant due, const ScopeSpan& span, const LostTime& server,
                         const LostTime& worker, Instant until = Instant::never());
// Returns the value of Slot::grace_ms: whole milliseconds, rounded up. kForever: no SIGKILL
// follows.
inline std::uint32_t grace_ms_of(Duration grace) {
  if (grace == kForever) {
    return kNoSigkill;
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(grace).count();
  return static_cast<std::uint32_t>(std::min<std::int64_t>(ms, kLongestGraceMs));
}
// Returns the time from the signal of a scope to its deadline; zero: it is not signalled first.
// `grace`: zero if no SIGKILL follows.
Duration grace_before_due(bool has_flag, int signal, Duration grace);
// Returns the same for a slot. `servers_grace` is that of a scope that names none.
Duration grace_before_due(const Slot& slot, Duration servers_grace);
// Returns when the scope of a slot with the open word `word` is due, or signalled first. A `span`
// with something carried begins with the end of the pause.
Instant due_after_losses(const Slot& slot, std::int64_t word, const ScopeSpan& span,
                         Duration max_timeout, const LostTime& server, const LostTime& worker);

// Which lost times count for the scope in a slot. After a pause it knows what the scope had got for
// times before, which the slot does not have.
class ScopeLosses {
 public:
  // Looks at a slot with the open word `word`, at `now`, and returns the span of its scope. Must be
  // called at each look once time was lost.
  ScopeSpan look(const Slot& slot, std::int64_t word, Duration max_timeout, const LostTime& server,
                 const LostTime& worker, Instant now);

 private:
  // What the last look has found.
  Instant acquired_;
  std::int64_t word_ = slot_word::kFree;
  Instant seen_;
  Duration left_{};   // at that look
  Duration asked_{};  // the timeout
  ScopeSpan span_;
};

// --- looks of the server ---

// A pause of the server or of the whole machine that falls between two looks is not noticed. While
// scopes are open the server therefore looks so often that such a pause takes at most a quarter of
// a timeout: `shortest` is the shortest one, as granted.
struct Looks {
  Duration pause = kForever;            // from one look to the next, at most
  Duration tolerated = kMostTolerated;  // how late a look may be before time was lost

  static constexpr Duration kLeastPause = std::chrono::milliseconds{100};
  // The limits of `tolerated`: a busy machine runs the server that much later than planned.
  static constexpr Duration kLeastTolerated = std::chrono::milliseconds{250};
  static constexpr Duration kMostTolerated = std::chrono::seconds{1};
};
Looks looks_for(Duration shortest);

// Returns the time before which a deadline wakes the server, which looks at `next`, or by
// `tolerated` later: a scope that is opened after `now` with a later deadline has a timeout of at
// least four times its wait for that look.
Instant wakes_before(Instant now, Instant next, Duration tolerated);

// --- soft deadlines ---

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

// Returns the soft deadline of a slot with an open word that is due at `due`. Returns never() for a
// paused scope, and for one whose soft deadline had passed before its last pause.
Instant soft_time_of(const Slot& slot, std::int64_t word, Instant due, std::uint32_t warn_at);

}  // namespace filetimer
