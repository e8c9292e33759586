// How long scopes took, a name and a thread at a time, in the page's own entries. An entry has one
// writer, the thread it is with; when the thread ends, the entry waits for the next one that uses
// the name, and is continued.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "common/scope_page.hpp"
#include "timer_client/client/page/page_file.hpp"

namespace filetimer {

inline constexpr std::int64_t kNoMargin = std::numeric_limits<std::int64_t>::max();

// A scope that was left.
struct LeftScope {
  std::int64_t acquired = 0;
  std::int64_t ended = 0;
  std::int64_t timeout_ns = 0;         // as requested; max: none
  std::int64_t margin_ns = kNoMargin;  // to its deadline, negative after it; kNoMargin: it had none
};

// Relaxed loads and stores: a reader may see some of the fields a scope ahead of the others.
inline void count_scope(SlotStatistics& entry, const LeftScope& scope) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::int64_t took_ns = scope.ended - scope.acquired;
  auto& bucket = entry.histogram[bucket_of(took_ns)];
  bucket.store(bucket.load(kRelaxed) + 1, kRelaxed);
  entry.total_ns.store(entry.total_ns.load(kRelaxed) + took_ns, kRelaxed);
  entry.last_ns.store(took_ns, kRelaxed);
  if (took_ns > entry.longest_ns.load(kRelaxed)) {
    entry.longest_ns.store(took_ns, kRelaxed);
  }
  if (scope.margin_ns < entry.smallest_margin_ns.load(kRelaxed)) {
    entry.smallest_margin_ns.store(scope.margin_ns, kRelaxed);
  }
  entry.timeout_ns.store(scope.timeout_ns, kRelaxed);
  const std::uint64_t count = entry.count.load(kRelaxed);
  if (count == 0) [[unlikely]] {
    entry.first_ns.store(took_ns, kRelaxed);
  }
  EndedScope& ended = entry.ended[count % kEndedScopes];
  // Pairs with the fence in read_ended_scopes(): a reader that sees the new times also sees that
  // the count has reached the scope before.
  std::atomic_thread_fence(std::memory_order_release);
  ended.ended.store(scope.ended, kRelaxed);
  ended.took_ns.store(took_ns, kRelaxed);
  // Pairs with the first load in read_ended_scopes().
  entry.count.store(count + 1, std::memory_order_release);
}

// Hands out the entries of a page. With the ProcessLock, but for may_have_more().
class PageStatistics {
 public:
  using ByName = std::unordered_map<std::string, SlotStatistics*>;

  // An entry for scopes called `name`; null when all are used, or there is no room on the disk.
  SlotStatistics* take(PageFile& file, const std::string& name);
  // The entries of a thread that ends.
  void give_back(ByName& entries);
  // False: take() will give none, whatever the name.
  [[nodiscard]] bool may_have_more() const {
    return may_have_more_.load(std::memory_order_relaxed);
  }

 private:
  std::unordered_multimap<std::string, SlotStatistics*> of_ended_threads_;
  std::uint32_t used_ = 0;
  std::atomic<bool> may_have_more_{true};
};

}  // namespace filetimer
