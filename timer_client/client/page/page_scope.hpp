// Opens, renews and releases scopes on the page, a million times a second: without a system call, a
// lock or an allocation, and without a write to a cache line that another thread writes. Rare cases
// are in page_scope.cpp.
//
// A scope may be paused, by its caller or with all other scopes of its thread (a paused region). A
// pause is a renewal to slot_word::kPaused, and a resume is a renewal with the time that was left,
// so both are ordered with release and verdict as renewals are. --max-timeout applies to pauses,
// too.
// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <filetimer/timer_client.hpp>

#include "common/clock.hpp"
#include "common/due.hpp"
#include "common/limits.hpp"
#include "common/wake_protocol.hpp"
#include "timer_client/client/page/own_page.hpp"
#include "timer_client/client/page/page_statistics.hpp"
#include "timer_client/client/page/thread_slots.hpp"
#include "timer_client/client/process_lock.hpp"

namespace filetimer {

// Which time of a file of timeouts applies to a scope that is opened.
enum class Opening : unsigned char {
  kScope,      // the first timeout, for the first scope of its name, or else the timeout
  kFirst,      // the first timeout: the code has chosen its own
  kHeartbeat,  // the first timeout, or else the timeout
};

// The options of a scope, checked and in the page's units.
struct PageTerms {
  std::int64_t timeout = 0;  // ns; max: none
  std::uint32_t grace_ms = kServersGrace;
  std::uint32_t soft_ms = 0;
  std::uint16_t signal = 0;
  std::uint16_t flags = 0;
  Opening opening = Opening::kScope;
  std::uint32_t code_timeout_ms = 0;  // as in the slot
};

// Returns the time of Instant::now(), without a call into another file.
inline std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Returns the deadline word of a scope, cut by the server's --max-timeout.
inline std::int64_t deadline_word(const Board& board, std::int64_t now, std::int64_t timeout) {
  // Relaxed: a server that starts with another limit applies it to open scopes.
  const std::int64_t longest = board.max_timeout.load(std::memory_order_relaxed);
  const std::int64_t granted = longest < timeout && longest > 0 ? longest : timeout;
  return now + (granted > kMaxTimeout.count() ? slot_word::kNoDeadline : granted);
}

// Returns a slot of this thread for a scope of `key`, without the lock. Null: call
// OwnPage::claim().
[[gnu::always_inline]] inline SlotHandle* claim_without_lock(OwnPage& page, ScopeKey key) {
  ThreadSlots* slots = t_slots;
  if (slots == nullptr || &slots->page != &page || slots->fork_count != fork_watch::count()) {
    slots = ThreadSlots::of_this_thread(page);
    if (slots == nullptr) {
      return nullptr;
    }
  }
  SlotHandle* const handle = slots->find(key);
  return handle != nullptr ? handle : slots->find_further(key);
}

// Bits for what the caller must do after a scope was opened or renewed; rarely any is set.
namespace todo {
inline constexpr unsigned kWake = 1;  // OwnPage::wake()
inline constexpr unsigned kLook = 2;  // ProcessPages::look_again()
}  // namespace todo

// Opens a scope with the deadline `word` in a slot that this thread has claimed. Returns bits of
// todo.
[[gnu::always_inline]] inline unsigned open_scope_until(SlotHandle& handle, const PageTerms& terms,
                                                        std::int64_t now, std::int64_t word) {
  ThreadSlots& slots = *t_slots;  // the handle's owner, since this thread has claimed it
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  begin_writing_slot();
  slot.acquired.store(now, kRelaxed);
  slot.started.store(now, kRelaxed);
  slot.timeout.store(terms.timeout, kRelaxed);
  slot.grace_ms.store(terms.grace_ms, kRelaxed);
  slot.soft_ms.store(terms.soft_ms, kRelaxed);
  slot.tid.store(slots.tid, kRelaxed);
  slot.signal.store(terms.signal, kRelaxed);
  slot.flags.store(terms.flags, kRelaxed);
  slot.code_timeout_ms.store(terms.code_timeout_ms, kRelaxed);
  set_deadline(slot, word);
  return (must_wake(board, slot, word) ? todo::kWake : 0) |
         (handle.page->is_look_due(now) ? todo::kLook : 0);
}

// Opens a scope as open_scope() does, in a thread whose scopes are suspended. Needs no lock.
unsigned open_suspended(SlotHandle& handle, const PageTerms& terms);

// Renews an open scope that is or was paused. Returns true if it is paused now: it stays paused,
// with `timeout` left, and `todo_next` is set to bits of todo. Returns false if the caller must
// renew it as any other. Needs no lock.
bool renew_after_pause(SlotHandle& handle, std::int64_t timeout, unsigned& todo_next) noexcept;

// Returns the terms of the next scope in the slot, with the times of a file of timeouts.
PageTerms with_replaced_timeout(SlotHandle& handle, const PageTerms& terms);
// Returns the timeout of a renewal for `timeout` in the code, and notes the latter in the slot.
std::int64_t replaced_renewal(SlotHandle& handle, std::int64_t timeout);

[[gnu::always_inline]] inline unsigned open_scope_for(SlotHandle& handle, const PageTerms& terms) {
  if (t_slots->is_suspended.load(std::memory_order_relaxed)) [[unlikely]] {
    return open_suspended(handle, terms);
  }
  const std::int64_t now = monotonic_ns();
  return open_scope_until(handle, terms, now,
                          deadline_word(handle.page->board(), now, terms.timeout));
}

// Opens a scope in a slot that this thread has claimed. Returns bits of todo.
[[gnu::always_inline]] inline unsigned open_scope(SlotHandle& handle, const PageTerms& terms) {
  if (handle.replaced != nullptr) [[unlikely]] {
    return open_scope_for(handle, with_replaced_timeout(handle, terms));
  }
  return open_scope_for(handle, terms);
}

// Counts what a renewal ends as a scope of its own: a heartbeat is measured by its beats.
void count_time(const SlotHandle& handle, const LeftScope& left) noexcept;

// Releases the scope number `generation` of `handle`, which is open. Must be called without the
// ProcessLock, as renew_scope().
ReleaseResult release_scope(SlotHandle& handle, std::uint64_t generation) noexcept;

// Returns when a scope with this word is due under the limit of the server of now, which may have
// started since the scope was opened.
inline Instant due_now(const Board& board, const Slot& slot, std::int64_t word) {
  const std::int64_t longest = board.max_timeout.load(kRelaxed);
  return due_time(slot, word, longest > 0 ? Duration{longest} : kForever);
}

// Returns the times of the scope that is open in `handle`.
inline TimerTimes times_of(const SlotHandle& handle) {
  const Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  std::int64_t word = slot.deadline.load(std::memory_order_acquire);
  const std::int64_t timeout = slot.timeout.load(kRelaxed);
  const Instant now{monotonic_ns()};
  TimerTimes times;
  times.elapsed = now - Instant{slot.acquired.load(kRelaxed)};
  times.timeout = timeout > kMaxTimeout.count() ? kNoDeadline : Duration{timeout};
  times.paused = slot_word::is_paused(word);
  times.expired = !slot_word::is_open(word);
  if (times.expired) {  // the word is the server's, and the other fields are unchanged
    word = deadline_word(board, slot.started.load(kRelaxed), timeout);
  }
  const Instant due = due_now(board, slot, word);
  times.remaining = times.paused && due > now ? Duration{slot.left.load(kRelaxed)}
                    : due.is_never()          ? kNoDeadline
                                              : due - now;
  return times;
}

// Moves the deadline of the open scope. Returns false if the verdict came first; the scope is
// released then. Sets `todo_next` to bits of todo.
inline bool renew_scope(SlotHandle& handle, std::uint64_t generation, std::int64_t timeout,
                        unsigned& todo_next) {
  if (handle.replaced != nullptr) [[unlikely]] {
    timeout = replaced_renewal(handle, timeout);
  }
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  constexpr std::uint16_t kWasPaused =
      slot_flag::kPausedByCaller | slot_flag::kSuspended | slot_flag::kResumed;
  for (;;) {
    // Acquire, as in times_of(): pairs with try_renew() of a thread that has paused or resumed the
    // scope, and has written the other fields before.
    const std::int64_t old_word = slot.deadline.load(std::memory_order_acquire);
    if (!slot_word::is_open(old_word)) {
      release_scope(handle, generation);
      return false;
    }
    if (slot_word::is_paused(old_word) || (slot.flags.load(kRelaxed) & kWasPaused) != 0)
        [[unlikely]] {
      if (renew_after_pause(handle, timeout, todo_next)) {
        return true;
      }
      if (slot_word::is_paused(old_word)) {
        continue;  // it was resumed meanwhile
      }
    }
    const std::int64_t now = monotonic_ns();
    const std::int64_t word = deadline_word(board, now, timeout);
    const LeftScope left =
        left_scope(slot.started.load(kRelaxed), now, slot.timeout.load(kRelaxed), old_word);
    slot.started.store(now, kRelaxed);
    slot.timeout.store(timeout, kRelaxed);
    if (try_renew(slot, old_word, word)) [[likely]] {
      count_time(handle, left);
      todo_next = (must_wake(board, slot, word) ? todo::kWake : 0) |
                  (handle.page->is_look_due(now) ? todo::kLook : 0);
      return true;
    }
    // Another thread has paused or resumed it; or the verdict came first.
  }
}

// Pause and resume a scope. `by`: slot_flag::kPausedByCaller or kSuspended; the scope's time
// continues when neither flag is set any more. Return false if the scope is not open. Set `wake` if
// OwnPage::wake() must be called. Must be called with the ProcessLock held.
bool pause_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;
bool resume_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;

}  // namespace filetimer
