// The wake protocol: how a worker sets a deadline that the server cannot miss, without a system
// call for each; and how both sides agree which came first, a release or the verdict. Both sides
// call these functions, and change the words in no other way.
//
// A worker stores its deadline, then reads the time on the status page (`board`), and writes a
// wake-up message to the pipe only if its deadline is earlier. Before the server sleeps, it writes
// "wake me always", reads all deadlines, then writes a time at or after its next wake-up, which is
// no later than the earliest deadline: see wakes_before().
//
//     worker                                server
//     ------                                ------
//  a: slot.deadline = D                  p: board.next_wake = always
//  b: w = board.next_wake                q: d = slot.deadline
//     wake the server if D < w           r: board.next_wake >= min(d, ...)
//                                           sleep until min(d, ...), or until it is woken
//
// All five are sequentially consistent, so there is one order of them that both sides agree on.
// Suppose that the server missed the deadline: q came before a. Then p came before q, q before a, a
// before b, so b reads what p or r wrote. Either that is "always": D is earlier, and the worker
// wakes the server. Or it is not earlier than the minimum m that was found without D: if D is
// earlier the worker wakes the server; if not, D >= m, and the server wakes by itself at m, in
// time, and reads again. Acquire and release would not suffice: a and b are a store and a later
// load of another word, which the hardware (x86 too) may exchange unless both are sequentially
// consistent.
//
// A worker that has written a message writes no other one before the next scan begins, however
// many scopes it opens before the server can run. The server counts its scans before it reads
// the deadlines (between p and q). A worker reads the count (after b), and writes no message if
// its last one is noted under that count; a message is noted under the count that was read
// before it was written. So the scan of that count does not follow the message, and a later one
// does. If the worker reads the same count after it has stored a deadline (a), the later scan
// has not begun, and reads that deadline.
//
// A scope's soft deadline is met in the same way, with D the earlier of the two. The server
// computes it from `started` and `soft_ms`, which the worker writes before `a`, and from `warn_at`
// of the status page, which a server writes before its first `p` and a worker reads after `b`.
//
// An idle timeout is a slot with the word kIdleWatch. Its deadline is the last release plus the
// timeout, and the server computes it when it reads the pages. If a scope is open at that moment,
// the deadline is no earlier than that moment plus the timeout, so the server reads again then. An
// idle timeout is begun as a deadline is set (a), with D that time plus the timeout. A release
// writes its time before it frees its slot, so a reader that sees the slot free sees the time.
//
// Slots that were never used are skipped by their number, PageHeader::slots. It grows before `a`
// and is read after `p`, sequentially consistent like the rest, so the same argument holds for it.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/board.hpp"
#include "common/due.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// --- the worker ---

// Is called before the fields of a free slot are written for its next scope. Pairs with the fence
// in is_unchanged(): a reader that sees a new field also sees the free word before it.
inline void begin_writing_slot() {
  std::atomic_thread_fence(std::memory_order_release);
}

// Opens the slot: its fields count from here on. (a)
inline void set_deadline(Slot& slot, std::int64_t word) {
  slot.deadline.store(word, std::memory_order_seq_cst);
}

// The part of must_wake() for scopes with a soft deadline. A call, because without soft deadlines
// it would only displace other instructions.
[[gnu::noinline]] inline bool must_wake_to_warn(const Slot& slot, std::int64_t due,
                                                std::uint32_t warn_at, std::int64_t next_wake) {
  return (due < next_wake && due < slot_word::kNoDeadline) ||
         soft_time_of(slot, slot.deadline.load(std::memory_order_relaxed), {due}, warn_at).ns <
             next_wake;
}

// Returns whether the worker must wake the server for the deadline that it has set, or for the soft
// deadline. `due`: the deadline, cut by the server's --max-timeout. (b)
inline bool must_wake(const Board& board, const Slot& slot, std::int64_t due) {
  const std::int64_t next = board.next_wake.load(std::memory_order_seq_cst);
  // Relaxed, but after the load above, so that both values are of the same server.
  const std::uint32_t warn_at = board.warn_at.load(std::memory_order_relaxed);
  if ((slot.soft_ms.load(std::memory_order_relaxed) | warn_at) != 0) [[unlikely]] {
    return must_wake_to_warn(slot, due, warn_at, next);
  }
  return due < next && due < slot_word::kNoDeadline;
}

// Begins an idle timeout in a free slot; must_wake_at() follows. (a)
inline void begin_idle_watch(Slot& slot) {
  slot.deadline.store(slot_word::kIdleWatch, std::memory_order_seq_cst);
}

// Returns whether the worker must wake the server for an idle timeout that is due at `when`. (b)
inline bool must_wake_at(const Board& board, std::int64_t when) {
  return when < board.next_wake.load(std::memory_order_seq_cst);
}

// Ends an idle timeout. Returns false if there is a verdict on it.
inline bool end_idle_watch(Slot& slot) {
  std::int64_t word = slot_word::kIdleWatch;
  return slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// Moves the deadline. Returns false if the verdict came first, or the slot is not open under
// `old_word`.
inline bool try_renew(Slot& slot, std::int64_t old_word, std::int64_t new_word) {
  return slot_word::is_open(old_word) &&
         slot.deadline.compare_exchange_strong(old_word, new_word, std::memory_order_seq_cst);
}

// Releases the scope. Returns false if the verdict came first, or the slot is not open under
// `word`.
inline bool try_release(Slot& slot, std::int64_t word) {
  return slot_word::is_open(word) &&
         slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// Is called after a release or a renewal that came too late. Returns the word of the slot:
// kReleasedLate, or kFree if the kill was over. A slot that is open again is freed, too: the next
// server has taken the verdict back meanwhile.
inline std::int64_t release_late(Slot& slot) {
  std::int64_t word = slot.deadline.load(std::memory_order_acquire);
  for (;;) {
    // An idle timeout that is judged no longer is released as a slot that was judged.
    const bool is_free_at_once =
        word == slot_word::kJudged || word == slot_word::kIdleWatch || word >= 0;
    const std::int64_t next = is_free_at_once ? slot_word::kFree : slot_word::kReleasedLate;
    if (word == next ||
        slot.deadline.compare_exchange_weak(word, next, std::memory_order_acq_rel)) {
      return next;
    }
  }
}

// --- the server ---

// Is called before the deadlines are read. (p)
inline void announce_scan(Board& board) {
  board.next_wake.store(kWakeAlways, std::memory_order_seq_cst);
  board.scans.fetch_add(1, std::memory_order_seq_cst);
}

// Returns the word of the slot. (q)
inline std::int64_t read_deadline(const Slot& slot) {
  return slot.deadline.load(std::memory_order_seq_cst);
}

// Is called after all deadlines were read: the server reads them again at `when` by itself. (r)
inline void announce_next_scan(Board& board, std::int64_t when) {
  board.next_wake.store(when, std::memory_order_seq_cst);
}

// Returns whether fields that were read after `word` belong to it.
inline bool is_unchanged(const Slot& slot, std::int64_t word) {
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with begin_writing_slot()
  return slot.deadline.load(std::memory_order_relaxed) == word;
}

// Gives the verdict: one exchange against exactly the deadline that was judged. Returns false if a
// release or a renewal came first.
inline bool try_expire(Slot& slot, std::int64_t word) {
  return slot.deadline.compare_exchange_strong(word, slot_word::expired(word),
                                               std::memory_order_seq_cst);
}

// Does the same for an idle timeout, with the deadline that the server has computed.
inline bool try_expire_idle(Slot& slot, std::int64_t deadline) {
  std::int64_t word = slot_word::kIdleWatch;
  return slot.deadline.compare_exchange_strong(word, slot_word::expired(deadline),
                                               std::memory_order_seq_cst);
}

// Returns whether the slot has an idle timeout.
inline bool is_idle_watch(const Slot& slot) {
  return (slot.flags.load(std::memory_order_relaxed) & slot_flag::kIdle) != 0;
}

// Frees a slot that was released after the verdict. Returns false if it was not.
inline bool acknowledge_late_release(Slot& slot) {
  std::int64_t word = slot_word::kReleasedLate;
  return slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// Marks the end of the kill; an idle timeout continues. Returns true if the slot was released
// meanwhile, and is free now.
inline bool finish_verdict(Slot& slot, std::int64_t word) {
  std::int64_t expected = slot_word::expired(word);
  const std::int64_t next = is_idle_watch(slot) ? slot_word::kIdleWatch : slot_word::kJudged;
  return !slot.deadline.compare_exchange_strong(expected, next, std::memory_order_acq_rel) &&
         acknowledge_late_release(slot);
}

// Revokes the verdict: the scope is open again. If it was released meanwhile, the slot is freed.
inline void take_verdict_back(Slot& slot, std::int64_t word) {
  std::int64_t expired = slot_word::expired(word);
  const std::int64_t next = is_idle_watch(slot) ? slot_word::kIdleWatch : word;
  if (!slot.deadline.compare_exchange_strong(expired, next, std::memory_order_seq_cst)) {
    acknowledge_late_release(slot);
  }
}

}  // namespace filetimer
