// SPDX-License-Identifier: MIT
#include "timer_client/client/page/page_scope.hpp"

#include <algorithm>
#include <limits>

namespace filetimer {
namespace {

constexpr std::uint16_t kHeld = slot_flag::kPausedByCaller | slot_flag::kSuspended;
constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();  // of Slot::left

// Returns whether the server must be woken, so that its --max-timeout ends a pause in time.
bool must_wake_paused(const Board& board, std::int64_t since) {
  // In this order, as in must_wake(): the limit is that of the server that published `next`, or of
  // a later one.
  const std::int64_t next = board.next_wake.load(std::memory_order_seq_cst);
  const std::int64_t longest = board.max_timeout.load(kRelaxed);
  return longest > 0 && longest <= kMaxTimeout.count() && since + longest < next;
}

std::int64_t left_of(std::int64_t word, std::int64_t now) {
  // A scope that is paused after its deadline and before its verdict keeps the least time.
  return word >= slot_word::kNoDeadline ? kEndless : std::max<std::int64_t>(word - now, 1);
}

// Returns a timeout in the code as Slot::code_timeout_ms has it.
std::uint32_t code_timeout_ms(std::int64_t timeout) {
  const std::int64_t ms = timeout / 1'000'000 + (timeout % 1'000'000 != 0 ? 1 : 0);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(ms, kNoCodeTimeout));
}

void set_flags(Slot& slot, std::uint16_t drop, std::uint16_t add) {
  slot.flags.fetch_and(static_cast<std::uint16_t>(~drop), kRelaxed);
  slot.flags.fetch_or(add, kRelaxed);
}

// Moves the start of a scope and changes its word. Returns false, and has changed neither, if
// another thread renews or releases the scope meanwhile.
bool try_move(Slot& slot, std::int64_t by, std::int64_t word, std::int64_t next) {
  std::int64_t started = slot.started.load(kRelaxed);
  std::int64_t moved = started + by;
  // Not a store: the renewal may have set the start already, and sets the word next.
  if (!slot.started.compare_exchange_strong(started, moved, kRelaxed)) {
    return false;
  }
  if (try_renew(slot, word, next)) {
    return true;
  }
  slot.started.compare_exchange_strong(moved, started, kRelaxed);
  return false;
}

// Returns the entry of this thread in which the scope is counted; null: there is none.
SlotStatistics* statistics_of(const SlotHandle& handle) {
  if (handle.statistics == nullptr) {
    return nullptr;
  }
  // The owner is this thread or another one, which may end meanwhile. `owner` equals t_slots only
  // if it is this thread: its ThreadSlots are alive, so no other thread has their address.
  return t_slots != nullptr && handle.owner.load(kRelaxed) == t_slots
             ? handle.statistics
             : handle.page->own_statistics(handle);
}

}  // namespace

PageTerms with_replaced_timeout(SlotHandle& handle, const PageTerms& terms) {
  const ReplacedTimeout& replaced = *handle.replaced;
  const bool is_first = std::exchange(handle.opens_first, false) ||
                        terms.opening == Opening::kHeartbeat || terms.opening == Opening::kFirst;
  Duration timeout = terms.opening == Opening::kFirst ? Duration::zero() : replaced.timeout;
  if (is_first && replaced.first_timeout != Duration::zero()) {
    timeout = replaced.first_timeout;
  }
  PageTerms changed = terms;
  if (timeout != Duration::zero()) {
    changed.timeout = timeout.count();
    changed.code_timeout_ms = code_timeout_ms(terms.timeout);
  }
  return changed;
}

std::int64_t replaced_renewal(SlotHandle& handle, std::int64_t timeout) {
  const Duration replaced = handle.replaced->timeout;
  const bool is_replaced = replaced != Duration::zero();
  handle.slot->code_timeout_ms.store(is_replaced ? code_timeout_ms(timeout) : 0, kRelaxed);
  return is_replaced ? replaced.count() : timeout;
}

bool pause_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept {
  Slot& slot = *handle.slot;
  for (bool has_tried = false;; has_tried = true) {
    const std::int64_t word = slot.deadline.load(kRelaxed);
    if (!slot_word::is_open(word)) {
      if (has_tried) {
        slot.left.store(monotonic_ns(), kRelaxed);  // when it was released, just now
      }
      return false;
    }
    if (slot_word::is_paused(word)) {
      slot.flags.fetch_or(by, kRelaxed);
      return true;
    }
    const std::int64_t now = monotonic_ns();
    const std::int64_t left = left_of(word, now);
    slot.left.store(left, kRelaxed);
    set_flags(slot, kHeld | slot_flag::kResumed, by);
    // After the deadline the start moves by what is overdue, so that the timeout stays the same.
    const std::int64_t overdue = left == kEndless ? 0 : now + left - word;
    if (try_move(slot, overdue, word, slot_word::kPaused + now)) {
      wake |= must_wake_paused(handle.page->board(), now);
      return true;
    }
  }
}

bool resume_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept {
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  for (;;) {
    // Acquire, as in renew_scope(): `left` and `started` are of the pause with this word.
    const std::int64_t word = slot.deadline.load(std::memory_order_acquire);
    if (!slot_word::is_paused(word)) {
      return slot_word::is_open(word);
    }
    set_flags(slot, by, 0);
    if ((slot.flags.load(kRelaxed) & kHeld) != 0) {
      return true;  // the other flag still pauses it
    }
    const std::int64_t now = monotonic_ns();
    const std::int64_t left = slot.left.load(kRelaxed);
    const std::int64_t next =
        left > kMaxTimeout.count() ? slot_word::kNoDeadline + now : now + left;
    // The start moves by the length of the pause.
    const std::int64_t paused = now - (word - slot_word::kPaused);
    set_flags(slot, 0, slot_flag::kResumed);
    if (try_move(slot, paused, word, next)) {
      wake |= must_wake(board, slot, due_now(board, slot, next).ns);
      return true;
    }
  }
}

unsigned open_suspended(SlotHandle& handle, const PageTerms& terms) {
  // Opened without a deadline first: Slot::left of a free slot is the time of its release.
  const Board& board = handle.page->board();
  const std::int64_t now = monotonic_ns();
  std::int64_t word = slot_word::kNoDeadline + now;
  unsigned todo_next = open_scope_until(handle, terms, now, word);
  Slot& slot = *handle.slot;
  slot.left.store(left_of(deadline_word(board, now, terms.timeout), now), kRelaxed);
  set_flags(slot, 0, slot_flag::kSuspended);
  if (try_renew(slot, word, slot_word::kPaused + now) && must_wake_paused(board, now)) {
    todo_next |= todo::kWake;
  }
  return todo_next;
}

bool renew_after_pause(SlotHandle& handle, std::int64_t timeout, unsigned& todo_next) noexcept {
  Slot& slot = *handle.slot;
  const Board& board = handle.page->board();
  for (;;) {
    const std::int64_t word = slot.deadline.load(kRelaxed);
    if (!slot_word::is_paused(word)) {
      // The flags of a pause belong to the thread that has just set them.
      set_flags(slot, slot_flag::kResumed, 0);
      return false;
    }
    const std::int64_t now = monotonic_ns();
    slot.left.store(left_of(deadline_word(board, now, timeout), now), kRelaxed);
    slot.started.store(now, kRelaxed);
    slot.timeout.store(timeout, kRelaxed);
    if (try_renew(slot, word, slot_word::kPaused + now)) {
      todo_next = must_wake_paused(board, now) ? todo::kWake : 0;
      return true;
    }
  }
}

void count_time(const SlotHandle& handle, const LeftScope& left) noexcept {
  SlotStatistics* const entry = statistics_of(handle);
  if (entry != nullptr) {
    count_scope(*entry, left);
  }
}

ReleaseResult release_scope(SlotHandle& handle, std::uint64_t generation) noexcept {
  // Before the slot is free: from then on another scope may use it, with the next number.
  handle.generation.store(generation + 1, kRelaxed);
  Slot& slot = *handle.slot;
  const std::int64_t found = slot.deadline.load(std::memory_order_acquire);  // as in times_of()
  const auto free_slot = [&] {
    std::int64_t word = found;
    while (slot_word::is_open(word)) {
      if (try_release(slot, word)) [[likely]] {
        return ReleaseResult::kReleased;
      }
      // Another thread has paused or resumed the scope, and has written Slot::left, too.
      word = slot.deadline.load(kRelaxed);
      if (handle.page->notes_releases()) {
        slot.left.store(monotonic_ns(), kRelaxed);
      }
    }
    slot.left.store(monotonic_ns(), kRelaxed);  // the record says how late it was
    release_late(slot);
    // A page that was cut short shows zeroes.
    return word == slot_word::kFree ? ReleaseResult::kNotOpen : ReleaseResult::kExpired;
  };
  // The slot is read before it is free.
  const std::int64_t started = slot.started.load(kRelaxed);
  const std::int64_t timeout = slot.timeout.load(kRelaxed);
  SlotStatistics* const entry = statistics_of(handle);
  const std::int64_t now = monotonic_ns();
  if (handle.page->notes_releases()) {
    slot.left.store(now, kRelaxed);
  }
  const ReleaseResult result = free_slot();
  if (entry != nullptr) {
    count_scope(*entry, left_scope(started, now, timeout, found));
  }
  return result;
}

}  // namespace filetimer
