// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/page_copy.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "common/posix.hpp"
#include "common/wake_protocol.hpp"

namespace filetimer::cli {
namespace {

// How often a slot that changes while it is read is read again.
constexpr int kRereads = 4;

std::size_t slot_at(std::size_t index) {
  return kSlotsAt + index * sizeof(Slot);
}

std::size_t name_at(std::size_t index) {
  return kNamesAt + index * sizeof(SlotName);
}

// Keeps the order of two copies.
void order_reads() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

tl::unexpected<Error> cut_short() {
  return failure("it was cut short");
}

}  // namespace

Result<PageClaims> PageCopy::read_header(int file) {
  struct stat st {};
  if (::fstat(file, &st) != 0) {
    return system_error("cannot examine it");
  }
  if (!S_ISREG(st.st_mode)) {
    return failure(S_ISDIR(st.st_mode)    ? "it is a folder"
                   : S_ISFIFO(st.st_mode) ? "it is a FIFO"
                                          : "it is no regular file");
  }
  if (st.st_uid != ::geteuid()) {
    return failure(fmt::format("it belongs to user {}", st.st_uid));
  }
  // read_claims() checks the size first, so a page of another size needs no copy.
  if (st.st_size == static_cast<off_t>(kPageBytes) && !copy(file, 0, sizeof(PageHeader))) {
    return cut_short();
  }
  return read_claims(page(), static_cast<std::uint64_t>(st.st_size));
}

Result<std::vector<SlotReading>> PageCopy::read_slots(int file) {
  const std::size_t count = slots_in_use(page());
  const std::size_t bytes = count * sizeof(Slot);
  if (!copy(file, kSlotsAt, bytes)) {
    return cut_short();
  }
  std::memcpy(slots_before_.data(), at(kSlotsAt), bytes);
  order_reads();
  if (!copy(file, kNamesAt, count * sizeof(SlotName))) {
    return cut_short();
  }
  order_reads();
  if (!copy(file, kSlotsAt, bytes)) {
    return cut_short();
  }
  std::vector<SlotReading> readings;
  for (std::size_t i = 0; i < count; ++i) {
    // If both copies are equal, the slot had not changed while its name was copied.
    if (std::memcmp(&slots_before_[i], at(slot_at(i)), sizeof(Slot)) != 0 && !reread(file, i)) {
      continue;
    }
    const std::int64_t word = page().slot(i).deadline.load(std::memory_order_relaxed);
    if (word == slot_word::kFree || word == slot_word::kReleasedLate ||
        is_idle_watch(page().slot(i))) {
      continue;
    }
    if (auto reading = read_slot(page(), i, word)) {
      readings.push_back(std::move(*reading));
    }
  }
  return readings;
}

Status PageCopy::read_statistics(int file, StatisticsByName& sums) {
  if (!copy(file, kStatisticsAt, statistics_in_use(page()) * sizeof(SlotStatistics))) {
    return cut_short();
  }
  add_statistics(page(), sums);
  return {};
}

Status PageCopy::read_ended_scopes(int file, EndedScopesByName& ended) {
  if (!copy(file, kStatisticsAt, statistics_in_use(page()) * sizeof(SlotStatistics))) {
    return cut_short();
  }
  add_ended_scopes(page(), ended);
  return {};
}

bool PageCopy::copy(int file, std::size_t offset, std::size_t bytes) {
  return read_at(file, at(offset), bytes, offset);
}

bool PageCopy::reread(int file, std::size_t index) {
  for (int i = 0; i < kRereads; ++i) {
    Line before;
    if (!read_at(file, &before, sizeof before, slot_at(index))) {
      return false;
    }
    order_reads();
    if (!copy(file, name_at(index), sizeof(SlotName))) {
      return false;
    }
    order_reads();
    if (!copy(file, slot_at(index), sizeof(Slot))) {
      return false;
    }
    if (std::memcmp(&before, at(slot_at(index)), sizeof(Slot)) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace filetimer::cli
