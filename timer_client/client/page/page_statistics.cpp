// SPDX-License-Identifier: MIT
#include "timer_client/client/page/page_statistics.hpp"

#include "common/page_writer.hpp"

namespace filetimer {

SlotStatistics* PageStatistics::take(PageFile& file, const std::string& name) {
  if (const auto found = of_ended_threads_.find(name); found != of_ended_threads_.end()) {
    SlotStatistics* const entry = found->second;
    of_ended_threads_.erase(found);
    may_have_more_ = used_ < kMaxStatistics || !of_ended_threads_.empty();
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
  may_have_more_ = used_ < kMaxStatistics || !of_ended_threads_.empty();
  return &entry;
}

void PageStatistics::give_back(ByName& entries) {
  for (const auto& [name, entry] : entries) {
    of_ended_threads_.emplace(name, entry);
    may_have_more_ = true;
  }
  entries.clear();
}

}  // namespace filetimer
