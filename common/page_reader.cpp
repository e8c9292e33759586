// SPDX-License-Identifier: MIT
#include "common/page_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/due.hpp"
#include "common/text.hpp"
#include "common/wake_protocol.hpp"

namespace filetimer {
namespace {

template <std::size_t Size>
std::string bounded_text(const char (&field)[Size]) {
  char copy[Size];
  std::memcpy(copy, field, Size);
  return valid_utf8({copy, ::strnlen(copy, Size)});
}

constexpr char kNoName = '?';

}  // namespace

std::string read_id(const SlotName& name) {
  std::uint64_t words[kNameWords];
  for (std::size_t i = 0; i < kNameWords; ++i) {
    words[i] = name.words[i].load(std::memory_order_relaxed);
  }
  char bytes[sizeof words];
  std::memcpy(bytes, words, sizeof words);
  return valid_utf8({bytes + 1, static_cast<unsigned char>(bytes[0])});
}

bool is_page_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxPageNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
}

Result<PageClaims> read_claims(const PageLayout& page, std::uint64_t file_bytes) {
  if (file_bytes != kPageBytes) {
    return failure(fmt::format("it has {} bytes: expected {}", file_bytes, kPageBytes));
  }
  const PageHeader& header = page.header();
  if (header.magic != kPageMagic) {
    return failure(
        fmt::format("it begins with {:#018x}: expected the mark of a scope page, {:#018x}",
                    header.magic, kPageMagic));
  }
  if (header.version != kPageVersion) {
    return failure(fmt::format("it is of version {}: expected {}", header.version, kPageVersion));
  }
  if (header.header_bytes != sizeof(PageHeader)) {
    return failure(fmt::format("its header has {} bytes: expected {}", header.header_bytes,
                               sizeof(PageHeader)));
  }
  PageClaims claims;
  claims.boot = header.boot;
  claims.pid = header.pid;
  claims.uid = header.uid;
  claims.start_time = header.start_time;
  claims.created_ns = header.created_ns;
  claims.rank = bounded_text(header.rank);
  claims.local_rank = bounded_text(header.local_rank);
  claims.job_id = bounded_text(header.job_id);
  claims.comm = bounded_text(header.comm);
  return claims;
}

std::size_t slots_in_use(const PageLayout& page) {
  return std::min<std::size_t>(page.header().slots.load(std::memory_order_seq_cst),
                               kMaxScopesPerWorker);
}

std::size_t statistics_in_use(const PageLayout& page) {
  return std::min<std::size_t>(page.header().statistics.load(std::memory_order_acquire),
                               kMaxStatistics);
}

std::optional<SlotReading> read_slot(const PageLayout& page, std::size_t index, std::int64_t word) {
  auto reading = read_slot(page.slot(index), word, [&] { return read_id(page.name(index)); });
  if (reading && reading->name.empty()) {
    reading->name.push_back(kNoName);
  }
  return reading;
}

std::optional<SlotReading> read_slot(const Slot& slot, std::int64_t word,
                                     const std::function<std::string()>& id) {
  SlotReading reading;
  reading.word = word;
  reading.acquired = start_in(slot.acquired);
  reading.started = start_in(slot.started);
  const std::int64_t asked = slot.timeout.load(kRelaxed);
  reading.asked = asked < 0 || asked > kMaxTimeout.count() ? kForever : Duration{asked};
  reading.deadline = slot_word::is_in_use(word)
                         ? deadline_of_word(slot_word::is_open(word) ? word : -word)
                         : reading.started + reading.asked;
  if (const std::int64_t left = slot.left.load(kRelaxed);
      slot_word::is_paused(word) && left <= kMaxTimeout.count()) {
    reading.left = Duration{std::max<std::int64_t>(left, 0)};
  }
  if (const std::uint32_t grace = slot.grace_ms.load(kRelaxed); grace != kServersGrace) {
    reading.grace_ms = grace;
  }
  if (const std::uint32_t code_ms = slot.code_timeout_ms.load(kRelaxed); code_ms != 0) {
    reading.code_timeout =
        code_ms == kNoCodeTimeout ? kForever : Duration{std::chrono::milliseconds{code_ms}};
  }
  reading.soft_ms = slot.soft_ms.load(kRelaxed);
  reading.tid = std::max(slot.tid.load(kRelaxed), 0);
  reading.signal = slot.signal.load(kRelaxed);
  reading.flags = slot.flags.load(kRelaxed);
  if (reading.has(slot_flag::kIdle) && slot_word::is_expired(word) && reading.asked != kForever) {
    reading.acquired = {std::max<std::int64_t>(reading.deadline.ns - reading.asked.count(), 0)};
    reading.started = reading.acquired;
  }
  reading.id = id();
  const std::size_t shown = slot.shown_bytes.load(kRelaxed);
  reading.name = shown == 0 ? reading.id : std::string(utf8_prefix(reading.id, shown));
  if (!is_unchanged(slot, word)) {
    return std::nullopt;
  }
  return reading;
}

Instant due_time(const SlotReading& reading, Duration max_timeout) {
  const std::int64_t word = slot_word::is_expired(reading.word) ? -reading.word : reading.word;
  return due_time(reading.deadline, word, reading.started, max_timeout);
}

void read_ended_scopes(const SlotStatistics& entry, std::vector<EndedReading>& readings) {
  const std::uint64_t count = entry.count.load(std::memory_order_acquire);
  std::array<EndedReading, kEndedScopes> ended;
  for (std::size_t i = 0; i < kEndedScopes; ++i) {
    const std::int64_t took = entry.ended[i].took_ns.load(std::memory_order_relaxed);
    ended[i] = {start_in(entry.ended[i].ended), Duration{std::max<std::int64_t>(took, 0)}};
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const EndedNumbers numbers =
      ended_numbers_in_copy(count, entry.count.load(std::memory_order_relaxed));
  for (std::uint64_t n = numbers.begin; n < numbers.end; ++n) {
    readings.push_back(ended[n % kEndedScopes]);
  }
}

void add_ended_scopes(const PageLayout& page, EndedScopesByName& ended) {
  const std::size_t count = statistics_in_use(page);
  for (std::size_t i = 0; i < count; ++i) {
    const SlotStatistics& entry = page.statistics(i);
    if (entry.count.load(std::memory_order_relaxed) > 0) {
      std::vector<EndedReading>& readings = ended[read_name(entry.name)];
      const auto before = static_cast<std::ptrdiff_t>(readings.size());
      read_ended_scopes(entry, readings);
      std::ranges::inplace_merge(readings, readings.begin() + before, {}, &EndedReading::ended);
    }
  }
}

std::string read_name(const SlotName& name) {
  std::string text = read_id(name);
  return text.empty() ? std::string(1, kNoName) : text;
}

}  // namespace filetimer
