// How a worker sets a deadline that the server can't miss, without telling it every time; and how
// the two agree on who came first, a release or the verdict. These few functions are all there is
// of it, and both sides call them.
//
// The server sleeps until the time that stands on its board. A worker stores its deadline, then
// reads that time, and only when its deadline is earlier does it write a wake line to the pipe. The
// server, before it sleeps, puts up "wake me always", reads all deadlines, then puts up the
// earliest.
//
//     worker                                server
//     ------                                ------
//  a: slot.deadline = D                  p: board.next_wake = always
//  b: w = board.next_wake                q: d = slot.deadline
//     wake the server if D < w           r: board.next_wake = min(d, ...)
//                                           sleep until then, or until it is woken
//
// All five are sequentially consistent, so they stand in one order that both sides agree on. Say
// the server misses the deadline: q before a. Then p before q before a before b, so b reads what p
// or r wrote: "always", and D is earlier: the server is woken; or the minimum m that was found
// without D: if D < m the server is woken, and if D >= m it wakes by itself at m, in time, and
// reads again. Acquire and release would not do: a and b are a store and a later load of another
// word, which the hardware (x86 too) may exchange unless both are sequentially consistent.
//
// A scope's soft deadline is met in the same way: D then is the earlier of the two. The server
// works it out of `started` and `soft_ms`, which the worker writes before `a`, and of the board's
// `warn_at`, which a server writes before its first `p` and a worker reads after `b`.
//
// An idle timeout is no scope: a slot that says kIdleWatch for as long as the worker wants it. Its
// deadline is the last release plus the timeout, and the server reckons it when it reads the pages:
// where a scope is open at that moment, no earlier than that moment plus the timeout, so that is
// when it reads again. The watch is begun as a deadline is set (a), with D the time of that plus
// the timeout. A release writes its time before it frees its slot: who sees the slot free sees it.
//
// Slots that were never used are skipped by their number, PageHeader::slots; it grows before `a`
// and is read after `p`, sequentially consistent like the rest, so the same argument holds for it.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/board.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// --- the worker ---

// Before the fields of a free slot are written for its next scope. Pairs with the fence in
// is_unchanged(): a reader that sees a new field sees the free word before it, too.
inline void begin_writing_slot() {
  std::atomic_thread_fence(std::memory_order_release);
}

// Opens the slot: its fields count from here on. (a)
inline void set_deadline(Slot& slot, std::int64_t word) {
  slot.deadline.store(word, std::memory_order_seq_cst);
}

// The rest of must_wake(), where somebody is to be warned.
bool must_wake_to_warn(const Slot& slot, std::int64_t due, std::uint32_t warn_at,
                       std::int64_t next_wake);

// After the deadline was set: whether the server has to be woken for it, or for the warning before
// it. `due`: the deadline, or what the server's --max-timeout makes of it if that is earlier. (b)
inline bool must_wake(const Board& board, const Slot& slot, std::int64_t due) {
  const std::int64_t next = board.next_wake.load(std::memory_order_seq_cst);
  // Relaxed, but behind the load above: whose time was read there, whose fraction is read here.
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

// After it: whether the server has to be woken for what is due then. (b)
inline bool must_wake_at(const Board& board, std::int64_t when) {
  return when < board.next_wake.load(std::memory_order_seq_cst);
}

// False: the worker was idle for too long, and the verdict is being carried out.
inline bool end_idle_watch(Slot& slot) {
  std::int64_t word = slot_word::kIdleWatch;
  return slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// Pushes the deadline. False: the verdict came first, or the slot is not open under `old_word`.
inline bool try_renew(Slot& slot, std::int64_t old_word, std::int64_t new_word) {
  return slot_word::is_open(old_word) &&
         slot.deadline.compare_exchange_strong(old_word, new_word, std::memory_order_seq_cst);
}

// Ends the scope. False: the verdict came first, or the slot is not open under `word`.
inline bool try_release(Slot& slot, std::int64_t word) {
  return slot_word::is_open(word) &&
         slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// After a release or a renewal that came too late. Gives the word that stands now: kReleasedLate,
// or kFree when the server was done with the slot.
inline std::int64_t release_late(Slot& slot) {
  std::int64_t word = slot.deadline.load(std::memory_order_acquire);
  for (;;) {
    const std::int64_t next =
        word == slot_word::kJudged ? slot_word::kFree : slot_word::kReleasedLate;
    if (word >= 0 || word == slot_word::kReleasedLate ||
        slot.deadline.compare_exchange_weak(word, next, std::memory_order_acq_rel)) {
      return word >= 0 ? word : next;
    }
  }
}

// --- the server ---

// Before the deadlines are read. (p)
inline void announce_scan(Board& board) {
  board.next_wake.store(kWakeAlways, std::memory_order_seq_cst);
}

// (q)
inline std::int64_t read_deadline(const Slot& slot) {
  return slot.deadline.load(std::memory_order_seq_cst);
}

// After all of them were read: when the server reads again by itself. (r)
inline void announce_next_scan(Board& board, std::int64_t when) {
  board.next_wake.store(when, std::memory_order_seq_cst);
}

// After fields were read: whether they belong to `word`, which was read before them.
inline bool is_unchanged(const Slot& slot, std::int64_t word) {
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with begin_writing_slot()
  return slot.deadline.load(std::memory_order_relaxed) == word;
}

// The verdict: one exchange against exactly the deadline that was judged. False: a release or a
// renewal came first.
inline bool try_expire(Slot& slot, std::int64_t word) {
  return slot.deadline.compare_exchange_strong(word, slot_word::expired(word),
                                               std::memory_order_seq_cst);
}

// The same of an idle timeout, which has the deadline that the server has reckoned.
inline bool try_expire_idle(Slot& slot, std::int64_t deadline) {
  std::int64_t word = slot_word::kIdleWatch;
  return slot.deadline.compare_exchange_strong(word, slot_word::expired(deadline),
                                               std::memory_order_seq_cst);
}

inline bool is_idle_watch(const Slot& slot) {
  return (slot.flags.load(std::memory_order_relaxed) & slot_flag::kIdle) != 0;
}

// Takes note of a release that came after the verdict: the slot is free. False: there was none.
inline bool acknowledge_late_release(Slot& slot) {
  std::int64_t word = slot_word::kReleasedLate;
  return slot.deadline.compare_exchange_strong(word, slot_word::kFree, std::memory_order_acq_rel);
}

// The server has no more use for a slot that it judged; an idle timeout goes on. True when it was
// released meanwhile.
inline bool finish_verdict(Slot& slot, std::int64_t word) {
  std::int64_t expected = slot_word::expired(word);
  const std::int64_t next = is_idle_watch(slot) ? slot_word::kIdleWatch : slot_word::kJudged;
  return !slot.deadline.compare_exchange_strong(expected, next, std::memory_order_acq_rel) &&
         acknowledge_late_release(slot);
}

// The verdict is void: the scope is open again, unless it was released meanwhile.
inline void take_verdict_back(Slot& slot, std::int64_t word) {
  std::int64_t expired = slot_word::expired(word);
  slot.deadline.compare_exchange_strong(expired, is_idle_watch(slot) ? slot_word::kIdleWatch : word,
                                        std::memory_order_seq_cst);
}

}  // namespace filetimer
