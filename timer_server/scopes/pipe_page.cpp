// SPDX-License-Identifier: MIT
#include "timer_server/scopes/pipe_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "common/due.hpp"
#include "common/mapped_file.hpp"
#include "common/wake_protocol.hpp"

namespace filetimer {
namespace {

// A client that has lost its server acquires its open scopes again, with the same deadlines. The
// conversion from the wall clock moves these by less than this. A renewal moves a deadline by more,
// or changes the timeout.
constexpr Duration kSameDeadline = std::chrono::milliseconds{1};

std::int64_t word_of(const SlotReading& terms) {
  if (terms.deadline.is_never() || terms.deadline.ns >= slot_word::kNoDeadline) {
    constexpr std::int64_t kMostTime = slot_word::kPaused - slot_word::kNoDeadline - 1;
    return slot_word::kNoDeadline + std::clamp<std::int64_t>(terms.acquired.ns, 0, kMostTime);
  }
  if (terms.deadline.ns > 0) {
    return terms.deadline.ns;
  }
  // A deadline before the boot cannot be a word. It becomes one in the first seconds after the
  // boot, and such deadlines keep their order.
  return 1 + (std::int64_t{1} << 31) + (terms.deadline.ns >> 32);
}

bool is_same_span(std::int64_t before, std::int64_t now) {
  return before < slot_word::kNoDeadline && now < slot_word::kNoDeadline &&
         std::chrono::abs(Instant{now} - Instant{before}) < kSameDeadline;
}

void set_terms(Slot& slot, const SlotReading& terms) {
  slot.acquired.store(terms.acquired.ns, kRelaxed);
  slot.started.store(terms.acquired.ns, kRelaxed);
  slot.timeout.store(terms.asked.count(), kRelaxed);
  slot.grace_ms.store(terms.grace_ms.value_or(kNoSigkill), kRelaxed);
  slot.soft_ms.store(terms.soft_ms, kRelaxed);
  slot.tid.store(terms.tid, kRelaxed);
  slot.signal.store(static_cast<std::uint16_t>(std::max(terms.signal, 0)), kRelaxed);
  slot.flags.store(terms.flags, kRelaxed);
}

// For slots that no other process writes.
void copy_slot(Slot& to, const Slot& from) {
  std::memcpy(static_cast<void*>(&to), &from, sizeof to);
}

void write_header(PageHeader& header, const Process& worker, const WorkerFacts& facts) {
  begin_page(header, page_flag::kMadeByServer);
  header.pid = worker.pid;
  header.start_time = worker.start_time;
  put_text(header.comm, facts.comm.empty() ? worker.comm : facts.comm);
  const auto text_of = [](const std::optional<int>& rank) {
    return rank ? fmt::format("{}", *rank) : std::string{};
  };
  put_text(header.rank, text_of(facts.rank));
  put_text(header.local_rank, text_of(facts.local_rank));
  put_text(header.job_id, facts.job_id);
}

}  // namespace

PipePage::PipePage(const std::string& folder, pid_t pid, Terms terms)
    : path_(fmt::format("{}/{}", folder, pid)), terms_(terms) {}

// Scopes that were released late, and those that were cancelled, keep their slots until their kill
// is over. A worker has one kill at a time, so there are never more than twice kMaxScopesPerWorker
// slots. Those beyond it are watched but not saved, because the file has no room for them.
PipePage::SlotNumber PipePage::take_free_slot() {
  if (free_.empty()) {
    grow(slots_.size() + 1);
    return static_cast<SlotNumber>(slots_.size() - 1);
  }
  const SlotNumber slot = free_.back();
  free_.pop_back();
  return slot;
}

Result<Instant> PipePage::acquire(std::string_view id, std::size_t shown_bytes,
                                  const SlotReading& terms) {
  const std::int64_t word = word_of(terms);
  end_cancelled(id);
  const auto found = find(id);
  const bool is_renewal = found && !slot_word::is_expired(word_at(*found));
  SlotNumber number = 0;
  if (is_renewal) {
    number = *found;
    const Slot& open = slot_at(number);
    const std::int64_t before = open.deadline.load(kRelaxed);
    const bool is_same =
        is_same_span(before, word) && open.timeout.load(kRelaxed) == terms.asked.count();
    move_notes(number, before, is_same ? word : slot_word::kFree);
  } else {
    if (found) {
      release(id);  // a renewal that comes after the verdict
    }
    if (by_id_.size() >= kMaxScopesPerWorker) {
      return failure(
          fmt::format("{} scopes of this worker are open: no more fit", kMaxScopesPerWorker));
    }
    Entry entry{.id = std::string(id)};  // what follows the choice of a slot takes no memory
    number = take_free_slot();
    entries_[number] = std::move(entry);
    slot_at(number).shown_bytes.store(
        shown_bytes == id.size() ? 0 : static_cast<std::uint32_t>(shown_bytes), kRelaxed);
    by_id_.insert(place_of(id), number);
  }
  Slot& slot = slot_at(number);
  set_terms(slot, terms);
  set_deadline(slot, word);
  is_changed_ = true;
  const Instant due = due_time(slot, word, terms_.max_timeout);
  return std::min(due, soft_time_of(slot, word, due, terms_.warn_at));
}

void PipePage::antedate(std::string_view id, Instant started) {
  const auto number = find(id);
  const std::int64_t word = number ? word_at(*number) : slot_word::kFree;
  if (!slot_word::is_open(word) || word >= slot_word::kNoDeadline) {
    return;
  }
  std::atomic<std::int64_t>& timeout = slot_at(*number).timeout;
  if (word - started.ns > timeout.load(kRelaxed)) {
    timeout.store(word - started.ns, kRelaxed);
    is_changed_ = true;
  }
}

bool PipePage::release(std::string_view id) {
  end_cancelled(id);
  const auto number = find(id);
  if (!number) {
    return false;
  }
  Slot& slot = slot_at(*number);
  const bool was_inside = !is_whole_process(slot);
  if (try_release(slot, slot.deadline.load(kRelaxed))) {
    free(*number);
  } else {
    release_late(slot);
    forget_id(*number);
    is_changed_ = true;
  }
  return was_inside;
}

std::vector<std::string> PipePage::cancel_all(Instant due_by, Instant opened_by) {
  std::vector<std::string> names;
  std::vector<Cancelled> chosen;
  for (const SlotNumber number : by_id_) {
    const std::int64_t word = word_at(number);
    const auto scope = read(number, word);
    if (scope && slot_word::is_open(word) && due_time(*scope, terms_.max_timeout) > due_by &&
        scope->acquired <= opened_by &&
        (due_by == Instant{} || !scope->has(slot_flag::kWholeProcess))) {
      names.push_back(scope->name);
      chosen.push_back({number, word});
    }
  }
  cancelled_.insert(cancelled_.end(), chosen.begin(), chosen.end());
  for (const Cancelled& each : chosen) {  // which takes no memory
    (void)try_release(slot_at(each.slot), each.word);
    forget_id(each.slot);
  }
  return names;
}

Result<std::shared_ptr<PipePage>> PipePage::adopt(const std::string& folder, pid_t pid,
                                                  Terms terms) {
  auto adopted = std::make_shared<PipePage>(folder, pid, terms);
  const std::string& path = adopted->path_;
  auto file = open_own_file(path, O_RDWR);
  FILETIMER_TRY(file);
  // The file is read into memory and not mapped, because a hole in a mapping may raise SIGBUS.
  std::vector<SlotBytes> bytes(kStatisticsAt / sizeof(SlotBytes));
  const PageLayout page(bytes.data());
  if (!read_at(file->fd.get(), page.base(), kStatisticsAt, 0) && errno != 0) {
    return system_error(fmt::format("cannot read '{}'", path));
  }
  if (page.header().magic == 0) {
    ::unlink(path.c_str());
    return nullptr;
  }
  auto claims = read_claims(page, static_cast<std::uint64_t>(file->status.st_size));
  if (!claims) {
    return failure(fmt::format("'{}': {}", path, claims.error().message));
  }
  adopted->claims_ = std::make_unique<const PageClaims>(std::move(*claims));
  adopted->made_ = Instant{adopted->claims_->created_ns};
  adopted->grow(slots_in_use(page));
  for (std::size_t i = 0; i < adopted->slots_.size(); ++i) {
    Slot& slot = adopted->slot_at(i);
    copy_slot(slot, page.slot(i));
    if (!slot_word::is_in_use(adopted->word_at(i))) {
      adopted->free(i);
      continue;
    }
    std::string id = read_id(page.name(i));
    if (const auto other = adopted->find(id)) {
      // It was acquired again after a verdict that was not recorded: the later one counts.
      const Slot& earlier = adopted->slot_at(*other);
      const bool is_later = slot.acquired.load(kRelaxed) > earlier.acquired.load(kRelaxed);
      adopted->free(is_later ? *other : i);
      if (!is_later) {
        continue;
      }
    }
    adopted->entries_[i] = {.id = std::move(id), .has_saved_name = true};
    adopted->by_id_.insert(adopted->place_of(adopted->entries_[i].id), static_cast<SlotNumber>(i));
  }
  adopted->fd_ = std::move(file->fd);
  return adopted;
}

Status PipePage::save(const Process& worker, const WorkerFacts& facts) {
  is_changed_ = false;
  try {
    // No file is made before a slot is in use.
    if ((!fd_ && by_id_.empty()) || write(worker, facts)) {
      return {};
    }
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  }
  const int error = errno;
  remove();
  return system_error(fmt::format("cannot write '{}'", path_), error);
}

bool PipePage::write(const Process& worker, const WorkerFacts& facts) {
  if (!fd_) {
    ::unlink(path_.c_str());
    fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd_ || ::ftruncate(fd_.get(), kPageBytes) != 0) {
      return false;
    }
  }
  // The header and the slots behind it.
  const std::size_t count = std::min(slots_.size(), kMaxScopesPerWorker);
  std::vector<SlotBytes> bytes(kSlotsAt / sizeof(SlotBytes) + count);
  const PageLayout page(bytes.data());
  const auto write_bytes = [&] {
    return write_at(fd_.get(), bytes.data(), bytes.size() * sizeof(SlotBytes), 0);
  };
  // An adopted file has what the earlier server wrote until the facts are read.
  write_header(page.header(), worker,
               facts.are_known || !claims_ ? facts : worker_facts_claimed(*claims_));
  page.header().created_ns = made_.ns;
  page.header().slots.store(static_cast<std::uint32_t>(count), kRelaxed);
  for (std::size_t i = 0; i < count; ++i) {
    copy_slot(page.slot(i), slot_at(i));
  }
  for (const Cancelled& each : cancelled_) {
    if (each.slot < count) {
      page.slot(each.slot).deadline.store(each.word, kRelaxed);
    }
  }
  // A reader that finds a slot in use finds its name: slots are free until their names are written.
  std::vector<std::pair<std::size_t, std::int64_t>> unnamed;
  for (std::size_t i = 0; i < count; ++i) {
    std::atomic<std::int64_t>& deadline = page.slot(i).deadline;
    if (deadline.load(kRelaxed) != slot_word::kFree && !entries_[i].has_saved_name) {
      unnamed.emplace_back(i, deadline.exchange(slot_word::kFree, kRelaxed));
    }
  }
  if (!unnamed.empty() && !write_bytes()) {
    return false;
  }
  for (const auto& [i, word] : unnamed) {
    const std::string& id = entries_[i].id;
    SlotName name{};
    write_name(name, id);
    if (!write_at(fd_.get(), &name, name_bytes(id.size()), kNamesAt + i * sizeof(SlotName))) {
      return false;
    }
    entries_[i].has_saved_name = true;
    page.slot(i).deadline.store(word, kRelaxed);
  }
  return write_bytes();
}

}  // namespace filetimer
