// The state behind a TimerClient and its scopes. The code that opens a scope is inline and takes no
// lock.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <filetimer/timer_client.hpp>
#include <string>
#include <unordered_set>

#include "common/board.hpp"
#include "timer_client/client/page/page_scope.hpp"
#include "timer_client/client/process_lock.hpp"
#include "timer_client/client/process_pages.hpp"

namespace filetimer {

inline bool is_open_here(const SlotHandle& handle, unsigned long long generation,
                         unsigned fork_count) {
  return fork_count == fork_watch::count() &&
         handle.generation.load(std::memory_order_relaxed) == generation;
}

// Call this before open_scope(): its sequentially consistent store is a full barrier, so a load
// placed after it stalls.
inline TimerScope::TimerScope(SlotHandle& slot) noexcept
    : slot_(&slot),
      number_(slot.generation.load(std::memory_order_relaxed)),
      fork_count_(fork_watch::count()) {}

struct TimerClient::State {
  explicit State(OwnPage& its_page) : first_page_(its_page), page_(&its_page) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Ends the idle timeout of this client.
  ~State();

  // Returns the page that scopes are opened on from now on. Relaxed: what is read of the page
  // depends on its address, which is stored with release; and a thread that reads the page that was
  // replaced in the same moment finds its successor at the next look.
  [[nodiscard, gnu::always_inline]] OwnPage& page() const {
    return *page_.load(std::memory_order_relaxed);
  }

  // Returns whether the server has announced that it watches no new scopes; then none are opened.
  // Relaxed: a scope that is opened in the same moment is watched as long as the server runs.
  [[nodiscard]] [[gnu::always_inline]] bool is_closed() const {
    return page().board().announcement.load(std::memory_order_relaxed) !=
           static_cast<std::uint32_t>(Announcement::kNone);
  }
  // As is_closed(), but returns false if that server was killed: the next server watches scopes
  // that are opened now. Takes some microseconds.
  [[nodiscard]] bool is_closed_by_server() const {
    return is_closed() && (page().is_off() || page().has_server());
  }

  // Claims a slot for a scope; see open_scope(). Returns null if there is no room for one: the
  // scope is not watched, since a worker never fails for its watchdog.
  [[gnu::always_inline]] SlotHandle* claim(ScopeKey key) {
    SlotHandle* const handle = claim_without_lock(page(), key);
    return handle != nullptr ? handle : claim_with_lock(key);
  }
  SlotHandle* claim_with_lock(ScopeKey key);

  // Checks whether the runtime directory was made again, and has page() be its page then. Must be
  // called with the lock held.
  void look_again() noexcept;

  // Exchanges the scope of start() with `scope`.
  void swap_job(TimerScope& scope);

  // Notes that a scope with a first timeout is opened. Returns whether the client opens the first
  // scope of the name. `is_longer`: the first timeout is. Must be called without the lock.
  [[nodiscard]] bool note_first(const std::string& shown, bool is_longer);

  // Separate function so that NRVO constructs the TimerScope in the caller's storage.
  [[gnu::always_inline]] TimerScope expires(SlotHandle& handle, const PageTerms& terms) {
    TimerScope scope(handle);
    if (const unsigned todo_next = open_scope(handle, terms)) [[unlikely]] {
      after_opening(scope, todo_next, terms);
    }
    return scope;
  }
  // Carries out the bits of todo. Must be called without the lock. If no server reads the page of
  // the scope any more, opens the scope again on the successor of the page.
  void after_opening(TimerScope& scope, unsigned todo_next, const PageTerms& terms);

  // The process that has said that scopes for which its page has no room are not watched.
  std::atomic<unsigned> said_limit_in = 0;
  // Names of scopes that were opened with a first timeout, in the process `begun_in`.
  std::unordered_set<std::string> begun;
  static constexpr std::size_t kMaxBegunNames = 1024;  // as many as have statistics
  unsigned begun_in = 0;

 private:
  TimerScope job_;              // with the lock
  OwnPage& first_page_;         // its successors are those that this client has used since
  std::atomic<OwnPage*> page_;  // written with the lock
};

}  // namespace filetimer
