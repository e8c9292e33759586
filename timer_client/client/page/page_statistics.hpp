// How long scopes took, a name and a thread at a time, in the page's own entries. An entry has one
// writer, the thread it is with; when the thread ends, the entry waits for the next one that uses
// the name, and is continued.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "common/scope_page.hpp"
#include "timer_client/client/page/page_file.hpp"

namespace filetimer {

// A scope that was open for `took_ns`; `margin_ns`: what was left to its deadline, negative when it
// was past it; kNoMargin: it had none. Relaxed loads and stores: a reader may see some of the
// fields a scope ahead of the others.
inline constexpr std::int64_t kNoMargin = std::numeric_limits<std::int64_t>::max();

inline void count_scope(SlotStatistics& entry, std::int64_t took_ns, std::int64_t margin_ns) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const auto took = static_cast<std::uint64_t>(took_ns > 0 ? took_ns : 1);
  const auto log2 = static_cast<std::size_t>(std::bit_width(took) - 1);
  auto& bucket = entry.histogram[log2 < kHistogramBuckets ? log2 : kHistogramBuckets - 1];
  bucket.store(bucket.load(kRelaxed) + 1, kRelaxed);
  entry.total_ns.store(entry.total_ns.load(kRelaxed) + took_ns, kRelaxed);
  entry.last_ns.store(took_ns, kRelaxed);
  if (took_ns > entry.longest_ns.load(kRelaxed)) {
    entry.longest_ns.store(took_ns, kRelaxed);
  }
  if (margin_ns < entry.smallest_margin_ns.load(kRelaxed)) {
    entry.smallest_margin_ns.store(margin_ns, kRelaxed);
  }
  entry.count.store(entry.count.load(kRelaxed) + 1, kRelaxed);
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
