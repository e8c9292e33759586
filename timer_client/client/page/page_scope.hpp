// Scopes on the page, as they are entered and left a million times a second: no system call, no
// lock, no allocation, and no cache line written that another thread writes. What is rare is in
// page_scope.cpp.
//
// Scopes may be paused: their time stands still, by the word of their caller or with all others of
// a thread (a paused region). A pause is a renewal to slot_word::kPaused and a resumption one to
// what was left, so both are ordered with release and verdict as renewals are. --max-timeout holds
// for pauses, too.
// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <filetimer/timer_client.hpp>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/wake_protocol.hpp"
#include "timer_client/client/fork_watch.hpp"
#include "timer_client/client/page/page_context.hpp"
#include "timer_client/client/page/page_statistics.hpp"
#include "timer_client/client/page/thread_slots.hpp"

namespace filetimer {

// What a scope is opened with, checked and in the page's units.
struct PageTerms {
  std::int64_t timeout = 0;  // ns; max: none
  std::uint32_t grace_ms = kServersGrace;
  std::uint32_t soft_ms = 0;
  std::uint16_t signal = 0;
  std::uint16_t flags = 0;
  std::uint64_t client = 0;  // that releases it when it goes; 0: a TimerScope does
};

// As Instant::now(), without a call to another file.
inline std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// The deadline, no later than the server's --max-timeout has it.
inline std::int64_t deadline_word(const Board& board, std::int64_t now, std::int64_t timeout) {
  // Relaxed: a server that comes with another limit applies it to what it finds.
  const std::int64_t longest = board.max_timeout.load(std::memory_order_relaxed);
  const std::int64_t granted = longest < timeout && longest > 0 ? longest : timeout;
  return now + (granted > kMaxTimeout.count() ? slot_word::kNoDeadline : granted);
}

// A slot of this thread's for a scope of `key`, without the lock; the thread is_entering then, so
// that nobody takes the slot away. Null: ask OwnPage::claim().
[[gnu::always_inline]] inline SlotHandle* claim_without_lock(PageContext& page, ScopeKey key) {
  ThreadSlots* slots = t_slots;
  if (slots == nullptr || &slots->page != &page || slots->fork_count != fork_watch::count()) {
    slots = ThreadSlots::of_this_thread(page);
    if (slots == nullptr) {
      return nullptr;
    }
  }
  slots->is_entering.store(true, std::memory_order_relaxed);
  // Only the compiler has to keep the order; the taker's barrier does the rest.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  SlotHandle* handle = nullptr;
  if (!slots->is_wanted.load(std::memory_order_acquire)) {  // pairs with the end of a taking
    handle = slots->find(key);
    if (handle == nullptr) {
      handle = slots->find_further(key);
    }
  }
  if (handle == nullptr) {
    slots->is_entering.store(false, std::memory_order_release);
  }
  return handle;
}

// What is to be done once a scope was opened or renewed, as bits; rarely any.
namespace todo {
inline constexpr unsigned kWake = 1;  // PageContext::wake()
inline constexpr unsigned kLook = 2;  // ProcessPages::look_again()
}  // namespace todo

// Opens a scope under that deadline in a slot that this thread has claimed. Returns bits of todo.
[[gnu::always_inline]] inline unsigned open_scope_until(SlotHandle& handle, const PageTerms& terms,
                                                        std::int64_t now, std::int64_t word) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  ThreadSlots& slots = *t_slots;  // the handle's owner, as it was claimed just now
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  handle.client.store(terms.client, kRelaxed);
  begin_writing_slot();
  slot.acquired.store(now, kRelaxed);
  slot.started.store(now, kRelaxed);
  slot.timeout.store(terms.timeout, kRelaxed);
  slot.grace_ms.store(terms.grace_ms, kRelaxed);
  slot.soft_ms.store(terms.soft_ms, kRelaxed);
  slot.tid.store(slots.tid, kRelaxed);
  slot.signal.store(terms.signal, kRelaxed);
  slot.flags.store(terms.flags, kRelaxed);
  set_deadline(slot, word);
  // Pairs with the load of who takes slots away: this one is in use now.
  slots.is_entering.store(false, std::memory_order_release);
  return (must_wake(board, slot, word) ? todo::kWake : 0) |
         (handle.page->is_look_due(now) ? todo::kLook : 0);
}

// As open_scope(), in a thread whose scopes are suspended. Without the lock.
unsigned open_suspended(SlotHandle& handle, const PageTerms& terms);

// Of an open scope that is or was paused. True: it is paused now, and stays so with `timeout` left.
// False: it is renewed as any other. Without the lock.
bool renew_after_pause(SlotHandle& handle, std::int64_t timeout, bool& wake) noexcept;

[[gnu::always_inline]] inline unsigned open_scope(SlotHandle& handle, const PageTerms& terms) {
  if (t_slots->suspensions.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    return open_suspended(handle, terms);
  }
  const std::int64_t now = monotonic_ns();
  return open_scope_until(handle, terms, now,
                          deadline_word(handle.page->board(), now, terms.timeout));
}

// As release_scope(), of a scope that is counted, whose release is noted, or that is too late.
ReleaseResult release_counted(SlotHandle& handle, bool has_lock) noexcept;

// Ends the scope that is open in `handle`, which is its `generation`th.
[[gnu::always_inline]] inline ReleaseResult release_scope(SlotHandle& handle,
                                                          std::uint64_t generation,
                                                          bool has_lock) noexcept {
  // Before the slot is free: from then on it may be the next scope's, with the next number.
  handle.generation.store(generation + 1, std::memory_order_relaxed);
  const std::int64_t word = handle.slot->deadline.load(std::memory_order_relaxed);
  if (handle.statistics == nullptr && !handle.page->notes_releases() && slot_word::is_open(word) &&
      try_release(*handle.slot, word)) {
    return ReleaseResult::kReleased;
  }
  return release_counted(handle, has_lock);
}

// Of the scope that is open in `handle`.
inline TimerTimes times_of(const SlotHandle& handle) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const Slot& slot = *handle.slot;
  const std::int64_t word = slot.deadline.load(kRelaxed);
  const std::int64_t timeout = slot.timeout.load(kRelaxed);
  const std::int64_t now = monotonic_ns();
  TimerTimes times;
  times.elapsed = Duration{now - slot.acquired.load(kRelaxed)};
  if (slot_word::is_paused(word)) {
    times.remaining = Duration{slot.left.load(kRelaxed)};
    times.is_paused = true;
  } else if (slot_word::is_open(word)) {
    times.remaining = word >= slot_word::kNoDeadline ? kNoDeadline : Duration{word - now};
  } else {
    // The server has judged it: the word is the server's, the terms are what they were.
    times.is_expired = true;
    times.remaining = timeout > kMaxTimeout.count()
                          ? kNoDeadline
                          : Duration{slot.started.load(kRelaxed) + timeout - now};
  }
  return times;
}

// Moves the deadline of the open scope. False: the verdict came first, and the scope is no more.
// `todo_next`: bits of todo.
inline bool renew_scope(SlotHandle& handle, std::uint64_t generation, std::int64_t timeout,
                        bool has_lock, unsigned& todo_next) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  constexpr std::uint16_t kWasPaused =
      slot_flag::kPausedByCaller | slot_flag::kSuspended | slot_flag::kResumed;
  for (;;) {
    const std::int64_t old_word = slot.deadline.load(kRelaxed);
    if (!slot_word::is_open(old_word)) {
      release_scope(handle, generation, has_lock);
      return false;
    }
    if (slot_word::is_paused(old_word) || (slot.flags.load(kRelaxed) & kWasPaused) != 0)
        [[unlikely]] {
      bool wake = false;
      if (renew_after_pause(handle, timeout, wake)) {
        todo_next = wake ? todo::kWake : 0;
        return true;
      }
      if (slot_word::is_paused(old_word)) {
        continue;  // it goes on since
      }
    }
    const std::int64_t now = monotonic_ns();
    const std::int64_t word = deadline_word(board, now, timeout);
    slot.started.store(now, kRelaxed);
    slot.timeout.store(timeout, kRelaxed);
    if (try_renew(slot, old_word, word)) [[likely]] {
      todo_next = (must_wake(board, slot, word) ? todo::kWake : 0) |
                  (handle.page->is_look_due(now) ? todo::kLook : 0);
      return true;
    }
    // Another thread has paused it or let it go on; or the verdict came first.
  }
}

// `by`: slot_flag::kPausedByCaller or kSuspended; a scope goes on when neither holds it any more.
// False: it is not open. `wake` is set where PageContext::wake()
// is to be called. With the ProcessLock.
bool pause_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;
bool resume_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;

// Open, and paused with all others of its thread.
bool is_suspended(const SlotHandle& handle) noexcept;

}  // namespace filetimer
