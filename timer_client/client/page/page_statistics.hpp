// The durations of scopes, in one entry of the page for each name and thread. Only the thread that
// has an entry writes to it. When that thread ends, the next thread that uses the name continues
// the entry.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "common/scope_page.hpp"
#include "timer_client/client/page/page_file.hpp"

namespace filetimer {

// The margin of a scope without a deadline.
inline constexpr std::int64_t kNoMargin = std::numeric_limits<std::int64_t>::max();

// A scope that was released or renewed: its time from its opening, or its last renewal, on. The
// start is later by the length of its pauses, and of one that began after the deadline by what was
// overdue then.
struct LeftScope {
  std::int64_t started = 0;
  std::int64_t ended = 0;
  std::int64_t timeout_ns = 0;         // as requested; max: none
  std::int64_t margin_ns = kNoMargin;  // from its release to its deadline, negative if it was late
};

// `started`: as in the slot. `word`: the deadline word with which the scope was left.
inline LeftScope left_scope(std::int64_t started, std::int64_t now, std::int64_t timeout,
                            std::int64_t word) {
  const std::int64_t deadline = slot_word::is_expired(word) ? -word : word;
  const bool has_margin = deadline > 0 && deadline < slot_word::kNoDeadline;
  if (slot_word::is_paused(word)) [[unlikely]] {
    started = std::min(started + now - (word - slot_word::kPaused), now);  // as a resume does
  }
  return {started, now, timeout, has_margin ? deadline - now : kNoMargin};
}

// Counts the scope. Relaxed loads and stores: a reader may see some of the fields one scope ahead
// of the others.
inline void count_scope(SlotStatistics& entry, const LeftScope& scope) {
  const std::int64_t took_ns = scope.ended - scope.started;
  auto& bucket = entry.histogram[bucket_of(took_ns)];
  const std::uint32_t in_bucket = bucket.load(kRelaxed);
  bucket.store(std::max(in_bucket + 1, in_bucket), kRelaxed);  // at most 2^32 - 1
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

// Hands out the entries of a page. Every member but may_have_more() must be called with the
// ProcessLock held.
class PageStatistics {
 public:
  // Returns an entry for scopes of the name `name`; null if all are in use, or if the disk is full.
  SlotStatistics* take(PageFile& file, const std::string& name) {
    if (const auto found = of_ended_threads_.find(name); found != of_ended_threads_.end()) {
      SlotStatistics* const entry = found->second;
      of_ended_threads_.erase(found);
      note_whether_more();
      return entry;
    }
    if (used_ >= kMaxStatistics || !file.allocate_statistics(used_)) {
      return nullptr;
    }
    const PageLayout page = file.layout();
    SlotStatistics& entry = page.statistics(used_);
    write_name(entry.name, name);
    entry.smallest_margin_ns.store(kNoMargin, std::memory_order_relaxed);
    // Pairs with the load in statistics_in_use(): the name is written before the entry is in use.
    page.header().statistics.store(++used_, std::memory_order_release);
    note_whether_more();
    return &entry;
  }
  // Takes back the entries of a thread that ends.
  void give_back(std::unordered_map<std::string, SlotStatistics*>& entries) {
    for (const auto& [name, entry] : entries) {
      of_ended_threads_.emplace(name, entry);
      may_have_more_ = true;
    }
    entries.clear();
  }
  // Returns false if take() returns null for every name.
  [[nodiscard]] bool may_have_more() const {
    return may_have_more_.load(std::memory_order_relaxed);
  }

 private:
  void note_whether_more() {
    may_have_more_ = used_ < kMaxStatistics || !of_ended_threads_.empty();
  }

  std::unordered_multimap<std::string, SlotStatistics*> of_ended_threads_;
  std::uint32_t used_ = 0;
  std::atomic<bool> may_have_more_{true};
};

}  // namespace filetimer
