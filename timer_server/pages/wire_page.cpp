// SPDX-License-Identifier: MIT
#include "timer_server/pages/wire_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/clock.hpp"
#include "common/own_file.hpp"
#include "common/page_writer.hpp"
#include "common/scope_page.hpp"
#include "timer_server/timer_table.hpp"

namespace filetimer {
namespace {

std::int64_t word_of(Instant deadline) {
  // 0 would say that the slot is free.
  return std::clamp<std::int64_t>(deadline.ns, 1, slot_word::kNoDeadline);
}

}  // namespace

WirePage::Change& WirePage::change_of(SlotNumber slot) {
  if (changed_.size() <= slot) {
    changed_.resize(slot + std::size_t{1});
  }
  if (changed_[slot] == 0) {
    changes_.emplace_back().slot = slot;
    changed_[slot] = static_cast<SlotNumber>(changes_.size());
  }
  return changes_[changed_[slot] - std::size_t{1}];
}

void WirePage::set_terms(Change& change, const ScopeTerms& terms) const {
  change.word = word_of(terms.deadline);
  change.acquired = terms.acquired.ns;
  change.timeout = terms.asked.count();
  change.grace_ms = terms.grace ? terms.grace->count() : kNoSigkill;
  change.soft_ms = terms.soft_ms;
  change.tid = terms.tid;
  change.signal = static_cast<std::uint16_t>(std::max(terms.signal, 0));
  change.flags = static_cast<std::uint16_t>((terms.whole_process ? slot_flag::kWholeProcess : 0) |
                                            (terms.is_idle ? slot_flag::kIdle : 0) |
                                            (terms.spare_if_left ? slot_flag::kSpareIfLeft : 0));
}

WirePage::SlotNumber WirePage::open(std::string_view id, std::size_t shown_bytes,
                                    const ScopeTerms& terms) {
  SlotNumber slot = kNone;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slots_ < kMaxScopesPerWorker) {
    slot = static_cast<SlotNumber>(slots_++);
  } else {
    return kNone;
  }
  Change& change = change_of(slot);
  set_terms(change, terms);
  change.has_name = true;
  change.name = id;
  change.shown_bytes = shown_bytes == id.size() ? 0 : static_cast<std::uint32_t>(shown_bytes);
  return slot;
}

void WirePage::renew(SlotNumber slot, const ScopeTerms& terms) {
  if (slot != kNone) {
    set_terms(change_of(slot), terms);
  }
}

void WirePage::expire(SlotNumber slot, const ScopeTerms& terms) {
  if (slot != kNone) {
    Change& change = change_of(slot);
    set_terms(change, terms);
    change.word = slot_word::expired(change.word);
  }
}

void WirePage::close(SlotNumber slot) {
  if (slot != kNone) {
    Change& change = change_of(slot);
    change.word = slot_word::kFree;
    change.has_name = false;
    free_.push_back(slot);
  }
}

Result<WirePage::Kept> WirePage::read(const std::string& path) {
  auto file = open_own_file(path, O_RDWR);
  if (!file) {
    return tl::unexpected<Error>(std::move(file.error()));
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines(kPageBytes / sizeof(Line));
  const PageLayout page(lines.data());
  const auto copy = [&](std::size_t offset, std::size_t bytes) {
    return read_at(file->fd.get(), page.base() + offset, bytes, offset);
  };
  if (!copy(0, kNamesAt)) {
    return failure(fmt::format("'{}' was cut short", path));
  }
  auto claims = read_claims(page, static_cast<std::uint64_t>(file->status.st_size));
  if (!claims) {
    return failure(fmt::format("'{}': {}", path, claims.error().message));
  }
  Kept kept{std::move(*claims), slots_in_use(page), {}, {}};
  for (std::size_t i = 0; i < kept.slots; ++i) {
    const std::int64_t word = page.slot(i).deadline.load(std::memory_order_relaxed);
    if (word == slot_word::kFree) {
      continue;
    }
    if (!copy(kNamesAt + i * sizeof(SlotName), sizeof(SlotName))) {
      return failure(fmt::format("'{}' was cut short", path));
    }
    if (auto reading = read_slot(page, i, word)) {
      kept.scopes.emplace_back(static_cast<SlotNumber>(i), std::move(*reading));
    }
  }
  kept.file = std::move(file->fd);
  return kept;
}

void WirePage::take_over(Kept& kept) {
  slots_ = static_cast<std::uint32_t>(kept.slots);
  saved_slots_ = slots_;
  fd_ = std::move(kept.file);
  auto next = kept.scopes.begin();
  for (std::size_t i = 0; i < kept.slots; ++i) {
    if (next != kept.scopes.end() && next->first == i) {
      ++next;
    } else {
      free_.push_back(static_cast<SlotNumber>(i));
    }
  }
}

Status WirePage::save(const Process& worker, const std::optional<WorkerFacts>& facts) {
  const std::vector<Change> changes = std::exchange(changes_, {});
  for (const Change& change : changes) {
    changed_[change.slot] = 0;
  }
  if (is_given_up_) {
    return {};
  }
  // Nothing to make a file for: all that was opened is closed again.
  const bool is_idle = std::ranges::all_of(
      changes, [](const Change& change) { return change.word == slot_word::kFree; });
  if (!fd_ && is_idle) {
    return {};
  }
  Status saved = fd_ ? Status{} : make_file(worker);
  if (saved && facts && !has_facts_) {
    has_facts_ = true;
    saved = write_facts(*facts);
  }
  for (const Change& change : changes) {
    if (saved) {
      saved = write(change);
    }
  }
  if (saved && slots_ != saved_slots_) {
    saved_slots_ = slots_;
    if (!write_at(fd_.get(), &slots_, sizeof slots_, offsetof(PageHeader, slots))) {
      saved = system_error(fmt::format("cannot write '{}'", path_));
    }
  }
  if (!saved) {
    remove();
    is_given_up_ = true;
  }
  return saved;
}

Status WirePage::make_file(const Process& worker) {
  ::unlink(path_.c_str());
  fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd_ || ::ftruncate(fd_.get(), kPageBytes) != 0) {
    return system_error(fmt::format("cannot make '{}'", path_));
  }
  PageHeader header{};
  begin_page(header, page_flag::kMadeByServer);
  header.pid = worker.pid;
  header.start_time = worker.start_time;
  put_text(header.comm, worker.comm);
  if (!write_at(fd_.get(), &header, sizeof header, 0)) {
    return system_error(fmt::format("cannot write '{}'", path_));
  }
  return {};
}

Status WirePage::write_facts(const WorkerFacts& facts) {
  PageHeader header{};
  const auto text_of = [](const std::optional<int>& rank) {
    return rank ? fmt::format("{}", *rank) : std::string{};
  };
  put_text(header.rank, text_of(facts.rank));
  put_text(header.local_rank, text_of(facts.local_rank));
  put_text(header.job_id, facts.job_id);
  constexpr std::size_t kFrom = offsetof(PageHeader, rank);
  if (!write_at(fd_.get(), header.rank, offsetof(PageHeader, comm) - kFrom, kFrom)) {
    return system_error(fmt::format("cannot write '{}'", path_));
  }
  return {};
}

// The name before the slot, and the slot free before the name: who reads the slot as open finds its
// name, and no other's.
Status WirePage::write(const Change& change) {
  if (change.has_name) {
    const std::int64_t free = slot_word::kFree;
    if (!write_at(fd_.get(), &free, sizeof free, kSlotsAt + change.slot * sizeof(Slot))) {
      return system_error(fmt::format("cannot write '{}'", path_));
    }
    SlotName name{};
    write_name(name, change.name);
    if (!write_at(fd_.get(), &name, name_bytes(change.name.size()),
                  kNamesAt + change.slot * sizeof(SlotName))) {
      return system_error(fmt::format("cannot write '{}'", path_));
    }
  }
  Slot slot{};
  constexpr auto kRelaxed = std::memory_order_relaxed;
  slot.deadline.store(change.word, kRelaxed);
  slot.acquired.store(change.acquired, kRelaxed);
  slot.started.store(change.acquired, kRelaxed);
  slot.timeout.store(change.timeout, kRelaxed);
  slot.grace_ms.store(change.grace_ms, kRelaxed);
  slot.soft_ms.store(change.soft_ms, kRelaxed);
  slot.tid.store(change.tid, kRelaxed);
  slot.signal.store(change.signal, kRelaxed);
  slot.flags.store(change.flags, kRelaxed);
  slot.shown_bytes.store(change.shown_bytes, kRelaxed);
  // Of one that was only renewed the name's length stays as it was written.
  const std::size_t bytes = !change.has_name && change.word != slot_word::kFree
                                ? offsetof(Slot, shown_bytes)
                                : sizeof slot;
  if (!write_at(fd_.get(), &slot, bytes, kSlotsAt + change.slot * sizeof(Slot))) {
    return system_error(fmt::format("cannot write '{}'", path_));
  }
  return {};
}

void WirePage::remove() {
  if (fd_) {
    ::unlink(path_.c_str());
    fd_.reset();
  }
}

}  // namespace filetimer
