// The data of a slot that are not on the scope page but in this process: the thread that has the
// slot, the name that it was last used for, and which of its scopes is the open one. Only the
// slot's thread writes to this cache line while it enters and leaves scopes.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

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

struct alignas(64) SlotHandle {
  static constexpr std::uint64_t kUnbound = ~std::uint64_t{0};  // no scope's tag

  Slot* slot = nullptr;
  OwnPage* page = nullptr;
  // The number of the slot's scope that is open, or opened next. Relaxed: incremented before the
  // slot is released and read after it was found free, so the slot's deadline orders it.
  std::atomic<std::uint64_t> generation{1};
  // Written with the ProcessLock; read by the thread that releases the scope. Relaxed: see
  // statistics_of().
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

}  // namespace filetimer
