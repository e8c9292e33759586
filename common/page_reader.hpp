// Reads a scope page that another process owns and may be changing meanwhile. Whatever its bytes
// are, the values that are returned are limited and valid. Nothing here writes to the page. The
// server and `timer_client list` use this on their mappings.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// Returns whether the name is that of a worker's page in `scopes`: letters, digits and '-', at most
// kMaxPageNameBytes. A name with '.' at its beginning is of a page that is being made.
bool is_page_name(std::string_view name);

// A copy of the header, which the owner may change at any moment.
struct PageClaims {
  BootId boot{};
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint64_t start_time = 0;
  std::int64_t created_ns = 0;
  std::string rank{};  // empty: not known
  std::string local_rank{};
  std::string job_id{};
  std::string comm{};
};

// Returns the header. Fails for another magic, version, header size or file size. `file_bytes` is
// the size of the file; unless it is right, the page must not be read.
Result<PageClaims> read_claims(const PageLayout& page, std::uint64_t file_bytes);

// Returns a number above all slots in use; at most kMaxScopesPerWorker.
std::size_t slots_in_use(const PageLayout& page);
// Returns the same for statistics.
std::size_t statistics_in_use(const PageLayout& page);

// The fields of a slot at one moment, as its worker asked for them, or as the server granted them
// (ScopePolicy).
struct SlotReading {
  std::int64_t word = 0;  // of Slot::deadline
  Instant deadline;       // never(): none; of an expired or judged scope its last deadline
  // This and the next are never before the boot. Of an idle timeout that has expired: since when
  // its worker was in no scope.
  Instant acquired;
  Instant started;
  Duration left = kForever;     // of a paused scope: the time that was left
  Duration asked = kForever;    // the timeout, as requested
  Duration timeout = kForever;  // as granted; kForever: none
  // The timeout in the code, if a file of the worker's replaced it; kForever: none.
  std::optional<Duration> code_timeout;
  // None: the server's, until ScopePolicy has granted it. kNoSigkill: no SIGKILL follows.
  std::optional<std::uint32_t> grace_ms;
  std::uint32_t soft_ms = 0;  // from `started` to a warning; 0: the server's
  std::int32_t tid = 0;
  int signal = 0;
  std::uint16_t flags = 0;  // slot_flag
  std::string name;
  std::string id;  // the name, or in a page made by the server the whole scope_id

  [[nodiscard]] bool has(std::uint16_t flag) const { return (flags & flag) != 0; }
  // Returns the time from the first signal to SIGKILL, as granted; none: no SIGKILL follows.
  [[nodiscard]] std::optional<Duration> grace() const {
    const std::uint32_t ms = grace_ms.value_or(kNoSigkill);
    return ms == kNoSigkill ? std::nullopt : std::optional<Duration>(std::chrono::milliseconds{ms});
  }
};

// Returns the fields of the slot that belong to `word`, which was read from it before. Returns
// nothing if the word has changed since.
std::optional<SlotReading> read_slot(const PageLayout& page, std::size_t index, std::int64_t word);
// Does the same for a slot whose identity `id` returns.
std::optional<SlotReading> read_slot(const Slot& slot, std::int64_t word,
                                     const std::function<std::string()>& id);

// Returns when the scope is due; see due.hpp.
Instant due_time(const SlotReading& reading, Duration max_timeout);

// A scope that was left.
struct EndedReading {
  Instant ended;  // never before the boot
  Duration took{};
};
// The numbers of ended scopes, from `begin` to before `end`; none if `end` is not greater.
struct EndedNumbers {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
// Returns which ended scopes are whole in a copy of SlotStatistics::ended, fewer than kEndedScopes.
// `before` and `after`: SlotStatistics::count before and after the copy was made. The worker may be
// writing the scope number `after`. No client of ours lets the count go down. From a page whose
// count goes down no scope is read.
constexpr EndedNumbers ended_numbers_in_copy(std::uint64_t before, std::uint64_t after) {
  if (after < before) {
    return {};
  }
  return {after < kEndedScopes ? 0 : after - (kEndedScopes - 1), before};
}
// Appends the last scopes that the entry has counted, the oldest first: at most kEndedScopes, one
// less while the worker writes the next.
void read_ended_scopes(const SlotStatistics& entry, std::vector<EndedReading>& readings);

// By name, those of all threads in the order in which they ended.
using EndedScopesByName = std::map<std::string, std::vector<EndedReading>>;
// Adds the last scopes of all entries of a page.
void add_ended_scopes(const PageLayout& page, EndedScopesByName& ended);

// Returns the name as valid UTF-8.
std::string read_id(const SlotName& name);
// Returns the name as valid UTF-8, and "?" for an empty one.
std::string read_name(const SlotName& name);

}  // namespace filetimer
