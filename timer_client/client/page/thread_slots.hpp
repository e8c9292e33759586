// The slots of the scope page that one thread holds, each bound to the name it was last used for,
// so that entering a scope again needs no lock, no allocation and no data of other threads. No
// other thread uses these slots until the thread ends.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/scope_page.hpp"

namespace filetimer {

class OwnPage;
struct ReplacedTimeout;
class ThreadSlots;

// Identifies scopes within a thread: the name as the caller wrote it, or the file and line where
// the scope is opened. Keys are compared before a name is copied or made.
struct ScopeKey {
  static ScopeKey of_name(std::string_view name) { return {name.data(), name.size() << 1}; }
  static ScopeKey of_line(const char* file, int line) {
    return {file, std::uint64_t{static_cast<unsigned>(line)} << 1 | kLine};
  }

  [[nodiscard]] bool is_line() const { return (tag & kLine) != 0; }
  [[nodiscard]] int line() const { return static_cast<int>(tag >> 1); }
  [[nodiscard]] std::string_view given() const {
    return is_line() ? std::string_view(text) : std::string_view(text, tag >> 1);
  }

  const char* text = nullptr;
  std::uint64_t tag = 0;  // the name's size or the line, and kLine

 private:
  friend struct SlotHandle;
  static constexpr std::uint64_t kLine = 1;
  ScopeKey(const char* its_text, std::uint64_t its_tag) : text(its_text), tag(its_tag) {}
};

// The data of a slot that are not on the scope page but in this process: the thread that has the
// slot, the name that it was last used for, and which of its scopes is the open one. Only the
// slot's thread writes to this cache line while it enters and leaves scopes.
struct alignas(64) SlotHandle {
  static constexpr std::uint64_t kUnbound = ~std::uint64_t{0};  // no scope's tag

  Slot* slot = nullptr;
  OwnPage* page = nullptr;
  // The number of the slot's scope that is open, or opened next. Relaxed: incremented before the
  // slot is released and read after it was found free, so the slot's deadline orders it.
  std::atomic<std::uint64_t> generation{1};
  // Written with the ProcessLock; read by the thread that releases the scope. Relaxed: see
  // statistics_of() in page_scope.cpp.
  std::atomic<ThreadSlots*> owner{nullptr};
  SlotStatistics* statistics = nullptr;  // null: no entry was free
  std::uint64_t tag = kUnbound;
  std::string given;  // with `tag`, what the slot is bound to
  std::uint32_t index = 0;
  const void* idle_client = nullptr;  // the client whose idle timeout it has; with the ProcessLock
  bool opens_first = false;           // the next scope is the first of its name in the thread
  // The times in a file of timeouts of the name that the slot is bound to; null: none.
  const ReplacedTimeout* replaced = nullptr;

  [[nodiscard]] bool is_free() const {
    // Pairs with the release in try_release(), of any thread, and with that of the server.
    return slot->deadline.load(std::memory_order_acquire) == slot_word::kFree;
  }
  // Returns what the slot is bound to, as a view of `given`.
  [[nodiscard]] ScopeKey key() const { return {given.c_str(), tag}; }
  [[nodiscard]] bool is_bound_to(ScopeKey key) const {
    return tag == key.tag && (key.is_line() ? std::strcmp(given.c_str(), key.text) == 0
                                            : same_bytes(given.data(), key.text, given.size()));
  }

 private:
  // Compares in place: a call of memcmp() costs more than comparing most names.
  static bool same_bytes(const char* a, const char* b, std::size_t size) {
    if (size > 16) {
      return std::memcmp(a, b, size) == 0;
    }
    if (size >= 8) {
      return same_word<std::uint64_t>(a, b) && same_word<std::uint64_t>(a + size - 8, b + size - 8);
    }
    if (size >= 4) {
      return same_word<std::uint32_t>(a, b) && same_word<std::uint32_t>(a + size - 4, b + size - 4);
    }
    return size == 0 || (a[0] == b[0] && a[size / 2] == b[size / 2] && a[size - 1] == b[size - 1]);
  }
  template <class Word>
  static bool same_word(const char* a, const char* b) {
    Word in_a = 0;
    Word in_b = 0;
    std::memcpy(&in_a, a, sizeof in_a);
    std::memcpy(&in_b, b, sizeof in_b);
    return in_a == in_b;
  }
};

// How many slots that are not in use a thread keeps for its names, before it binds one of them to
// another name: changing between more names than this is slower. Once the threads have half of the
// page's slots, each keeps one, so that the other half suffices for many more threads.
inline constexpr std::size_t kMaxIdleSlots = 8;
inline constexpr std::size_t kSlotsForMany = kMaxScopesPerWorker / 2;

class alignas(64) ThreadSlots {
 public:
  ThreadSlots(OwnPage& page, unsigned fork_count);

  // Returns this thread's slots on `page`; null: it has none yet.
  static ThreadSlots* of_this_thread(const OwnPage& page);

  // --- this thread, without a lock ---

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

  // --- this thread, with the ProcessLock ---

  // As find_further(), but rebinds no slot of another key.
  SlotHandle* find_bound(ScopeKey key) noexcept;
  // Returns a slot that is not in use, of any key.
  SlotHandle* next_idle();
  [[nodiscard]] bool has_enough_idle() const;
  void bind(SlotHandle& handle, ScopeKey key, const std::string& shown, SlotStatistics* statistics);
  void make_shortcut(ScopeKey key, SlotHandle& handle);

  OwnPage& page;
  const unsigned fork_count;
  const pid_t tid;
  // Whether the thread is in a paused region. Written with the lock, read by the thread.
  std::atomic<bool> is_suspended{false};

  // With the ProcessLock.
  std::vector<SlotHandle*> handles;
  std::unordered_map<std::string, SlotStatistics*> statistics;
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
