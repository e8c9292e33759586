// SPDX-License-Identifier: MIT
#include "timer_server/pages/ended_statistics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "common/own_file.hpp"
#include "common/page_writer.hpp"

namespace filetimer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::size_t place_of(std::size_t entry) {
  return kStatisticsAt + entry * sizeof(SlotStatistics);
}

// What a worker wrote may be any number: sums stop at the largest.
std::int64_t sum_of(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, std::max<std::int64_t>(b, 0), &sum) ? kMost : sum;
}

void add_to(SlotStatistics& sum, const SlotStatistics& part) {
  const std::uint64_t count = sum.count.load(kRelaxed);
  sum.count.store(count + std::min(part.count.load(kRelaxed), ~count), kRelaxed);
  sum.total_ns.store(sum_of(sum.total_ns.load(kRelaxed), part.total_ns.load(kRelaxed)), kRelaxed);
  sum.last_ns.store(std::max<std::int64_t>(part.last_ns.load(kRelaxed), 0), kRelaxed);
  sum.longest_ns.store(std::max(sum.longest_ns.load(kRelaxed), part.longest_ns.load(kRelaxed)),
                       kRelaxed);
  sum.smallest_margin_ns.store(
      std::min(sum.smallest_margin_ns.load(kRelaxed), part.smallest_margin_ns.load(kRelaxed)),
      kRelaxed);
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const std::uint64_t both = std::uint64_t{sum.histogram[i].load(kRelaxed)} +
                               std::uint64_t{part.histogram[i].load(kRelaxed)};
    sum.histogram[i].store(static_cast<std::uint32_t>(std::min<std::uint64_t>(both, UINT32_MAX)),
                           kRelaxed);
  }
}

}  // namespace

EndedStatistics::EndedStatistics(std::string path) : path_(std::move(path)) {
  auto file = open_own_file(path_, O_RDWR);
  PageHeader header{};
  if (!file || !read_at(file->fd.get(), &header, sizeof header, 0) ||
      !read_claims(PageLayout(&header), static_cast<std::uint64_t>(file->status.st_size))) {
    return;
  }
  fd_ = std::move(file->fd);
  const std::size_t count = statistics_in_use(PageLayout(&header));
  for (std::size_t i = 0; i < count; ++i) {
    SlotStatistics entry{};
    if (read_at(fd_.get(), &entry, sizeof entry, place_of(i))) {
      entries_.emplace(read_name(entry.name), i);
    }
  }
}

bool EndedStatistics::make_file() {
  ::unlink(path_.c_str());
  fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  PageHeader header{};
  begin_page(header, page_flag::kMadeByServer | page_flag::kStatistics);
  entries_.clear();
  if (!fd_ || ::ftruncate(fd_.get(), kPageBytes) != 0 ||
      !write_at(fd_.get(), &header, sizeof header, 0)) {
    fd_.reset();
    return false;
  }
  return true;
}

std::size_t EndedStatistics::entry_of(const std::string& name) {
  if (const auto known = entries_.find(name); known != entries_.end()) {
    return known->second;
  }
  const std::size_t entry = entries_.size();
  if (entry >= kMaxStatistics) {
    return kMaxStatistics;
  }
  SlotStatistics fresh{};
  write_name(fresh.name, name);
  fresh.smallest_margin_ns.store(kMost, kRelaxed);
  const auto used = static_cast<std::uint32_t>(entry + 1);
  if (!write_at(fd_.get(), &fresh, sizeof fresh, place_of(entry)) ||
      !write_at(fd_.get(), &used, sizeof used, offsetof(PageHeader, statistics))) {
    return kMaxStatistics;
  }
  entries_.emplace(name, entry);
  return entry;
}

void EndedStatistics::add(const PageLayout& page) {
  const std::size_t count = statistics_in_use(page);
  for (std::size_t i = 0; i < count; ++i) {
    const SlotStatistics& part = page.statistics(i);
    if (part.count.load(kRelaxed) == 0 || (!fd_ && !make_file())) {
      continue;
    }
    const std::size_t entry = entry_of(read_name(part.name));
    SlotStatistics sum{};
    if (entry < kMaxStatistics && read_at(fd_.get(), &sum, sizeof sum, place_of(entry))) {
      add_to(sum, part);
      write_at(fd_.get(), &sum, sizeof sum, place_of(entry));
    }
  }
}

}  // namespace filetimer
