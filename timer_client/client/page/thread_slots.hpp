// The slots of the scope page that one thread holds, each bound to the name it was last used for,
// so that entering a scope again needs no lock, no allocation and no data of other threads.
//
// A thread uses its ThreadSlots without a lock, and yet another thread, the taker, may have to take
// idle slots from it when the page has no free slot. So a thread first stores that it is entering a
// scope, then loads whether it must stop. The taker first stores that the thread must stop, then
// makes all threads pass a barrier (membarrier(2)), then loads whether the thread is entering:
//
//     thread                               taker (with the ProcessLock)
//     ------                               -----
//     is_entering = true                   is_taking = true
//     (the barrier falls here or not)      membarrier: a full barrier in every thread
//     stop if is_taking                    leave the thread alone if is_entering
//
// If the thread's load came before the barrier, so did its store, and the taker sees the store. If
// the load came after the barrier, it sees is_taking. Only the taker pays for the barrier: the
// thread's two stores and one load have no measurable cost.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "timer_client/client/page/slot_handle.hpp"

namespace filetimer {

// How many slots that are not in use a thread keeps. Changing between more names than this is
// slower.
inline constexpr std::size_t kMaxIdleSlots = 8;

class alignas(64) ThreadSlots {
 public:
  using StatisticsByName = std::unordered_map<std::string, SlotStatistics*>;

  ThreadSlots(OwnPage& page, unsigned fork_count);

  // Returns this thread's slots on `page`; null: it has none yet.
  static ThreadSlots* of_this_thread(const OwnPage& page);

  // --- this thread, without a lock, while is_entering ---

  // Returns a free slot bound to `key`, if the shortcut of the key leads to one; else null.
  [[nodiscard, gnu::always_inline]] SlotHandle* find(ScopeKey key) const {
    const Shortcut& shortcut = shortcuts_[shortcut_of(key)];
    const bool is_of_key =
        shortcut.text == key.text && shortcut.tag == key.tag && shortcut.handle->is_bound_to(key);
    return is_of_key && shortcut.handle->is_free() ? shortcut.handle : nullptr;
  }
  // Returns any free slot bound to `key`, or else rebinds a slot of another key, if the thread has
  // enough of them and that needs no lock. Null: claim one with the lock.
  SlotHandle* find_further(ScopeKey key) noexcept;

  // --- with the ProcessLock, and the thread not entering ---

  // As find_further(), but rebinds no slot of another key.
  SlotHandle* find_bound(ScopeKey key) noexcept;
  // Returns a slot that is not in use, of any key.
  SlotHandle* next_idle();
  [[nodiscard]] bool has_enough_idle() const;
  void take(SlotHandle& handle);
  void bind(SlotHandle& handle, ScopeKey key, const std::string& shown, SlotStatistics* statistics);
  // Moves the slots that are not in use to the end of `to`, which has room for them.
  void give_up_idle(std::vector<SlotHandle*>& to);
  void make_shortcut(ScopeKey key, SlotHandle& handle);

  // Returns the entry in which scopes of a name are counted; null: it has not been looked up yet.
  [[nodiscard]] SlotStatistics* statistics_of(const std::string& shown) const;

  OwnPage& page;
  const unsigned fork_count;
  const pid_t tid;
  std::atomic<bool> is_entering{false};  // written by the thread alone
  // Whether the thread is in a paused region. Written with the lock, read by the thread.
  std::atomic<bool> is_suspended{false};

  // With the ProcessLock.
  std::vector<SlotHandle*> handles;
  StatisticsByName statistics;
  ThreadSlots* next_of_thread = nullptr;  // on another page; for this thread alone

 private:
  struct Shortcut {
    const char* text = nullptr;
    std::uint64_t tag = SlotHandle::kUnbound;
    SlotHandle* handle = nullptr;
  };
  static constexpr std::size_t kShortcuts = 64;
  // A view of the `given` of the handle that it leads to.
  struct Name {
    std::string_view given;
    std::uint64_t tag = 0;
    friend bool operator==(const Name&, const Name&) = default;
  };
  struct NameHash {
    std::size_t operator()(const Name& name) const {
      return std::hash<std::string_view>()(name.given) ^ (name.tag * kSpread);
    }
  };
  static constexpr std::uint64_t kSpread = 0x9E37'79B9'7F4A'7C15;

  static std::size_t shortcut_of(ScopeKey key) {
    return ((reinterpret_cast<std::uintptr_t>(key.text) + key.tag) * kSpread) >> 58;
  }
  void unbind(SlotHandle& handle);

  std::array<Shortcut, kShortcuts> shortcuts_;
  std::unordered_multimap<Name, SlotHandle*, NameHash> by_name_;
  std::unordered_set<const ReplacedTimeout*> begun_;  // of names that the thread has used
  std::size_t hand_ = 0;                              // where next_idle() continues
};

// This thread's most recently used ThreadSlots. They are of the parent process in a forked child
// that has not used them yet: see ThreadSlots::fork_count.
extern constinit thread_local ThreadSlots* t_slots;

// Returns the name, of a line as "train.cpp:123".
std::string whole_name(ScopeKey key);
// Returns the name under which the scope is shown: valid UTF-8, cut and marked if it is too long.
std::string shown_name(ScopeKey key);

}  // namespace filetimer
