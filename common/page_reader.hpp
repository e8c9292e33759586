// Reading a scope page that somebody else owns and may be writing, or scribbling on, at this
// moment. Whatever the bytes are, what is read is bounded and valid; nothing here writes to the
// page. Used by the server on its mapping and by `timer_client list` on a copy.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

// Whether a file in `scopes` is called as workers call theirs: letters, digits and '-', at most
// kMaxPageNameBytes. What begins with '.' is a page that is being made.
bool is_page_name(std::string_view name);

// What a header says, copied once: the owner may change it while one looks.
struct PageClaims {
  BootId boot{};
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint64_t start_time = 0;
  std::int64_t created_ns = 0;
  std::string rank;  // empty: not known
  std::string local_rank;
  std::string job_id;
  std::string comm;
};

// Refused: another magic, version or header size, and a file of another size. `file_bytes` is the
// size of the file; only if it is right may the page be read at all.
Result<PageClaims> read_claims(const PageLayout& page, std::uint64_t file_bytes);

// Slots that may be open: those below this number. At most kMaxScopesPerWorker.
std::size_t slots_in_use(const PageLayout& page);
std::size_t statistics_in_use(const PageLayout& page);

// A slot as it stood at one moment.
struct SlotReading {
  std::int64_t word = 0;  // of Slot::deadline
  Instant deadline;       // never() for none; of an expired or a judged one what it was
  // This and the next: never before the boot. Of an idle timeout that has expired: since when its
  // worker was in no scope.
  Instant acquired;
  Instant started;
  Duration left = kForever;               // of a paused scope: of its time
  Duration asked = kForever;              // the timeout
  std::optional<std::uint32_t> grace_ms;  // none: the server's; kNoSigkill: never
  std::uint32_t soft_ms = 0;              // from `started` to a warning; 0: the server's
  std::int32_t tid = 0;
  int signal = 0;
  std::uint16_t flags = 0;
  std::string name;
  std::string id;  // as name, except in a page made by the server: the whole scope_id
};

// The slot with all that belongs to `word`, which was read from it before. Nothing when it has
// changed since.
std::optional<SlotReading> read_slot(const PageLayout& page, std::size_t index, std::int64_t word);
// The same of a slot whose identity is read by `id` when its turn comes.
std::optional<SlotReading> read_slot(const Slot& slot, std::int64_t word,
                                     const std::function<std::string()>& id);

// When a slot's word (open) is due, under a --max-timeout (kForever: none), which counts from the
// last renewal, or from the pause.
Instant due_time(const Slot& slot, std::int64_t word, Duration max_timeout);
Instant due_time(const SlotReading& reading, Duration max_timeout);
// When to warn about a slot with that word (open), which is due then: see soft_deadline.hpp. Never
// about a paused one, and not again about one that was over its soft deadline before its pause.
Instant soft_time_of(const Slot& slot, std::int64_t word, Instant due, std::uint32_t warn_at);

// Valid UTF-8.
std::string read_id(const SlotName& name);
// Valid UTF-8; of no bytes: "?".
std::string read_name(const SlotName& name);

}  // namespace filetimer
