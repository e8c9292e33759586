// Any bytes as a scope page: its header and first slots, their names, and the first statistics, in
// this order; the rest is zero. Invariants: a file of another size is refused, counts are bounded,
// every text is valid UTF-8 and bounded, and times can be subtracted.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "common/due.hpp"
#include "common/page_reader.hpp"
#include "common/text.hpp"
#include "common/wake_protocol.hpp"
#include "fuzz_check.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/text/output.hpp"

namespace {

using namespace filetimer;
using namespace filetimer::cli;

// So that libFuzzer's 4,096 bytes reach into every part of a page of 2.1 MB.
constexpr std::size_t kSeedSlots = 4;
struct Part {
  std::size_t at;
  std::size_t bytes;
};
constexpr Part kParts[] = {{0, kSlotsAt + kSeedSlots * sizeof(Slot)},
                           {kNamesAt, kSeedSlots * sizeof(SlotName)},
                           {kStatisticsAt, kMaxStatistics * sizeof(SlotStatistics)}};

constexpr std::size_t kWidestByte = 4;  // a byte that is not UTF-8 becomes \xHH

struct alignas(64) Line {
  std::byte bytes[64];
};

void check_text(std::string_view text, std::size_t max_bytes) {
  FUZZ_CHECK(text.size() <= kWidestByte * max_bytes);
  FUZZ_CHECK(valid_utf8(text) == text);
}

// Clears only the used part, because most of a page of this size stays zero.
void check_slots(const PageLayout& page) {
  const std::size_t count = slots_in_use(page);
  FUZZ_CHECK(count <= kMaxScopesPerWorker);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t word = read_deadline(page.slot(i));
    const auto reading = read_slot(page, i, word);
    FUZZ_CHECK(reading);  // no process writes
    FUZZ_CHECK(reading->word == word);
    FUZZ_CHECK(!reading->name.empty());
    check_text(reading->name, kMaxScopeNameBytes);
    check_text(reading->id, kMaxScopeNameBytes);
    for (const Instant time : {reading->deadline, reading->acquired, reading->started}) {
      FUZZ_CHECK(time.ns >= 0);
    }
    FUZZ_CHECK(reading->asked >= Duration::zero());
    FUZZ_CHECK(reading->tid >= 0);
    for (const Duration longest : {Duration{1}, kMaxTimeout, kForever}) {
      const Instant due = due_time(page.slot(i), word, longest);
      FUZZ_CHECK(!slot_word::is_open(word) || due.ns > 0);
    }
    if (i < kSeedSlots) {
      FUZZ_CHECK(!read_slot(page, i, word ^ 1));  // another word than it says
    }
  }
}

// The estimates and sums of `list --stats`, over the same bytes.
void check_statistics(const PageLayout& page) {
  const std::size_t count = statistics_in_use(page);
  FUZZ_CHECK(count <= kMaxStatistics);
  StatisticsByName sums;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = read_name(page.statistics(i).name);
    check_text(name, kMaxScopeNameBytes);
    sums[name].add(page.statistics(i));
  }
  for (const auto& [name, sum] : sums) {
    for (const double part : {0.5, 0.99}) {
      FUZZ_CHECK(sum.quantile(part) >= Duration::zero());
      FUZZ_CHECK(sum.quantile(part) <= sum.longest);
    }
    FUZZ_CHECK(sum.mean() <= sum.total);
  }
  constexpr std::size_t kWidth = 80;
  FUZZ_CHECK(statistics_table(sums, {.width = kWidth}).size() <= (count + 1) * (4 * kWidth + 1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::vector<Line> lines(kPageBytes / sizeof(Line));  // 0.8 MiB; one is enough
  static std::size_t used[std::size(kParts)] = {};
  const PageLayout page(lines.data());
  std::size_t taken = 0;
  for (std::size_t i = 0; i < std::size(kParts); ++i) {
    std::memset(page.base() + kParts[i].at, 0, used[i]);
    used[i] = std::min(kParts[i].bytes, size - taken);
    std::memcpy(page.base() + kParts[i].at, data + taken, used[i]);
    taken += used[i];
  }

  FUZZ_CHECK(read_claims(page, size).has_value() <= (size == kPageBytes));
  const auto claims = read_claims(page, kPageBytes);
  if (!claims) {
    FUZZ_CHECK(!claims.error().message.empty());
    FUZZ_CHECK(printable(claims.error().message) == claims.error().message);
    return 0;
  }
  check_text(claims->rank, sizeof page.header().rank);
  check_text(claims->local_rank, sizeof page.header().local_rank);
  check_text(claims->job_id, sizeof page.header().job_id);
  check_text(claims->comm, sizeof page.header().comm);
  check_slots(page);
  check_statistics(page);
  return 0;
}
