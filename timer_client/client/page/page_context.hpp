// The part of a page that opening or renewing a scope needs.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include "common/board.hpp"
#include "common/scope_page.hpp"
#include "timer_client/client/page/timeouts_file.hpp"

namespace filetimer {

struct SlotHandle;

// The part of an OwnPage that the slots and threads use. Its members may be called in any thread,
// without the ProcessLock. Never destroyed.
class PageContext {
 public:
  PageContext(const PageContext&) = delete;
  PageContext& operator=(const PageContext&) = delete;

  // Returns the status page of the server.
  [[nodiscard]] const Board& board() const { return *board_; }
  // Returns whether a release must be noted in its slot, for an idle timeout.
  [[nodiscard]] bool notes_releases() const {
    return notes_releases_.load(std::memory_order_relaxed);
  }
  // Returns the timeouts of a file that replace those in the code; null: there is no file. Acquire:
  // pairs with the release in replace_timeouts().
  [[nodiscard]] const ReplacedTimeouts* replaced_timeouts() const {
    return replaced_timeouts_.load(std::memory_order_acquire);
  }
  // Applies `timeouts` to names that a thread uses for the first time. They must never be
  // destroyed.
  void replace_timeouts(const ReplacedTimeouts& timeouts) {
    replaced_timeouts_.store(&timeouts, std::memory_order_release);
  }
  // Returns whether a thread takes slots from others, see thread_slots.hpp. Acquire: pairs with the
  // end of a taking.
  [[nodiscard]] bool is_taking() const { return is_taking_.load(std::memory_order_acquire); }
  // Returns whether ProcessPages::look_again() is due.
  [[nodiscard]] bool is_look_due(std::int64_t now) const {
    return now >= next_look_.load(std::memory_order_relaxed);
  }

  // Returns the parts of the page. Must be called by threads that have a slot of it.
  [[nodiscard]] virtual PageLayout layout() const = 0;
  // Returns false if no further name can get statistics.
  [[nodiscard]] virtual bool may_have_statistics() const = 0;
  // Returns the entry in which this thread counts the scope of `handle`, which is a slot of another
  // thread; null: the scope is not counted. Must be called without the ProcessLock.
  virtual SlotStatistics* own_statistics(const SlotHandle& handle) noexcept = 0;
  // Wakes the server. Must be called, with or without the ProcessLock, after a scope was opened or
  // renewed with a deadline for which must_wake() returns true.
  virtual void wake() noexcept = 0;

 protected:
  explicit PageContext(const Board& board) : board_(&board) {}
  ~PageContext() = default;

  const Board* const board_;
  std::atomic<bool> notes_releases_{false};
  std::atomic<bool> is_taking_{false};  // written with the ProcessLock
  std::atomic<const ReplacedTimeouts*> replaced_timeouts_{nullptr};
  std::atomic<std::int64_t> next_look_{0};  // CLOCK_MONOTONIC. Relaxed: orders no other data
};

}  // namespace filetimer
