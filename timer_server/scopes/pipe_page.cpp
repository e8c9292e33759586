// SPDX-License-Identifier: MIT
#include "timer_server/scopes/pipe_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/due.hpp"
#include "common/kept_fd.hpp"
#include "common/own_file.hpp"
#include "common/page_writer.hpp"
#include "common/scope_page.hpp"
#include "common/wake_protocol.hpp"
#include "timer_server/scopes/page_folder.hpp"

namespace filetimer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Slots are allocated in steps of this size. The first ones are allocated by doubling, because most
// workers have few.
constexpr std::size_t kSlotsAtOnce = 16;
// Scopes that were judged keep their slots until their kills are over. Slots beyond
// kMaxScopesPerWorker are watched but not saved, because the file has no room for them.
constexpr std::size_t kMostSlots = 2 * kMaxScopesPerWorker;

// A client that has lost its server acquires its open scopes again, with the same deadlines. The
// conversion from the wall clock moves these by less than this. A renewal moves a deadline by more,
// or changes the timeout.
constexpr Duration kSameDeadline = std::chrono::milliseconds{1};

std::int64_t word_of(const ScopeTerms& terms) {
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

// For slots that no other process writes.
void copy_slot(Slot& to, const Slot& from) {
  std::memcpy(static_cast<void*>(&to), &from, sizeof to);
}

}  // namespace

PipePage::PipePage(const std::string& folder, pid_t pid, Terms terms)
    : folder_(folder), terms_(terms), pid_(pid) {}

std::string PipePage::path() const {
  return fmt::format("{}/{}", folder_, pid_);
}

std::vector<PipePage::SlotNumber>::const_iterator PipePage::place_of(std::string_view id) const {
  return std::ranges::lower_bound(
      by_id_, id, {}, [this](SlotNumber slot) -> std::string_view { return entries_[slot].id; });
}

std::optional<PipePage::SlotNumber> PipePage::find(std::string_view id) const {
  const auto place = place_of(id);
  return place != by_id_.end() && entries_[*place].id == id ? std::optional(*place) : std::nullopt;
}

bool PipePage::has_open(std::string_view id) const {
  const auto slot = find(id);
  return slot && slot_word::is_open(slot_at(*slot).deadline.load(kRelaxed));
}

std::optional<PipePage::SlotNumber> PipePage::take_free_slot() {
  if (!free_.empty()) {
    const SlotNumber slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (count_ == kMostSlots) {
    return std::nullopt;
  }
  grow(count_ + 1);
  return static_cast<SlotNumber>(count_ - 1);
}

void PipePage::grow(std::size_t count) {
  if (count > capacity_) {
    const std::size_t capacity = count < kSlotsAtOnce
                                     ? std::bit_ceil(count)
                                     : (count + kSlotsAtOnce - 1) / kSlotsAtOnce * kSlotsAtOnce;
    auto larger = std::make_unique<Slot[]>(capacity);
    for (std::size_t i = 0; i < count_; ++i) {
      copy_slot(larger[i], slots_[i]);
    }
    slots_ = std::move(larger);
    capacity_ = capacity;
  }
  entries_.resize(count);
  count_ = count;
}

void PipePage::set_terms(Slot& slot, const ScopeTerms& terms) const {
  slot.acquired.store(terms.acquired.ns, kRelaxed);
  slot.started.store(terms.acquired.ns, kRelaxed);
  slot.timeout.store(terms.asked.count(), kRelaxed);
  slot.grace_ms.store(terms.grace ? terms.grace->count() : kNoSigkill, kRelaxed);
  slot.soft_ms.store(terms.soft_ms, kRelaxed);
  slot.tid.store(terms.tid, kRelaxed);
  slot.signal.store(static_cast<std::uint16_t>(std::max(terms.signal, 0)), kRelaxed);
  slot.flags.store(static_cast<std::uint16_t>((terms.whole_process ? slot_flag::kWholeProcess : 0) |
                                              (terms.signal_first ? slot_flag::kSignalFirst : 0)),
                   kRelaxed);
}

Result<Instant> PipePage::acquire(std::string_view id, std::size_t shown_bytes,
                                  const ScopeTerms& terms) {
  const std::int64_t word = word_of(terms);
  end_cancelled(id);
  const auto found = find(id);
  const bool is_renewal = found && !slot_word::is_expired(slot_at(*found).deadline.load(kRelaxed));
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
    const auto taken = by_id_.size() < kMaxScopesPerWorker ? take_free_slot() : std::nullopt;
    if (!taken) {
      return failure(
          fmt::format("{} scopes of this worker are open: no more fit", kMaxScopesPerWorker));
    }
    number = *taken;
    cancelled_ -= std::exchange(entries_[number].is_cancelled, false) ? 1U : 0U;
    entries_[number].id = id;
    entries_[number].has_saved_name = false;
    slot_at(number).shown_bytes.store(
        shown_bytes == id.size() ? 0 : static_cast<std::uint32_t>(shown_bytes), kRelaxed);
    by_id_.insert(place_of(id), number);
  }
  Slot& slot = slot_at(number);
  set_terms(slot, terms);
  set_deadline(slot, word);
  note_change(number);
  const Instant due = due_time(slot, word, terms_.max_timeout);
  const Instant first = std::min(due, soft_time_of(slot, word, due, terms_.warn_at));
  next_ = std::min(next_, first);
  shortest_ = std::min(shortest_, timeout_of(slot, word, terms_.max_timeout));
  return first;
}

void PipePage::antedate(std::string_view id, Instant started) {
  const auto number = find(id);
  const std::int64_t word = number ? slot_at(*number).deadline.load(kRelaxed) : slot_word::kFree;
  if (slot_word::is_open(word) && word < slot_word::kNoDeadline && word > started.ns) {
    slot_at(*number).timeout.store(word - started.ns, kRelaxed);
    note_change(*number);
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
    note_change(*number);
  }
  return was_inside;
}

std::vector<std::string> PipePage::cancel_all(Instant due_by) {
  std::vector<std::string> names;
  for (const SlotNumber number : std::vector<SlotNumber>(by_id_)) {
    Slot& slot = slot_at(number);
    const std::int64_t word = slot.deadline.load(kRelaxed);
    if (word <= due_by.ns || !try_release(slot, word)) {
      continue;
    }
    const std::size_t shown = slot.shown_bytes.load(kRelaxed);
    const std::string& id = entries_[number].id;
    names.push_back(shown == 0 ? id : id.substr(0, shown));
    free(number);
    entries_[number].is_cancelled = true;
    ++cancelled_;
  }
  return names;
}

void PipePage::end_cancelled(std::optional<std::string_view> id) {
  for (std::size_t slot = 0; cancelled_ > 0 && slot < count_; ++slot) {
    Entry& entry = entries_[slot];
    if (entry.is_cancelled && (!id || entry.id == *id)) {
      entry.is_cancelled = false;
      --cancelled_;
      note_change(slot);
    }
  }
}

void PipePage::free(std::size_t slot) {
  slot_at(slot).deadline.store(slot_word::kFree, kRelaxed);
  forget_id(slot);
  note_change(slot);
  free_.push_back(static_cast<SlotNumber>(slot));
}

void PipePage::forget_id(std::size_t slot) {
  const auto place = place_of(entries_[slot].id);
  if (place != by_id_.end() && *place == slot) {
    by_id_.erase(place);
  }
}

void PipePage::note_change(std::size_t slot) {
  entries_[slot].is_changed = is_changed_ = true;
}

// A slot whose kill is over is freed although the worker may still be in the scope, because no
// message on the pipe would announce the end.
void PipePage::on_change(std::size_t slot) {
  const std::int64_t word = slot_at(slot).deadline.load(kRelaxed);
  if (word == slot_word::kFree || word == slot_word::kJudged) {
    free(slot);
  }
  note_change(slot);
  next_ = {};
}

// Between two scans deadlines only get later, except those of acquire() and of verdicts that are
// taken back, which update next_.
Instant PipePage::scan(const Scan& scan, Found& found, Activity& activity) {
  Instant next = next_;
  if (scan.now < next_) {
    activity.is_inside = activity.is_inside || std::ranges::any_of(by_id_, [this](SlotNumber slot) {
                           return !is_whole_process(slot_at(slot));
                         });
  } else {
    const std::size_t known = found.due.size() + found.to_signal.size();
    const Duration shortest = std::exchange(activity.shortest, kForever);
    next = next_ = WorkerPage::scan(scan, found, activity);
    shortest_ = std::exchange(activity.shortest, shortest);
    if (found.due.size() + found.to_signal.size() > known) {
      next_ = {};  // scopes that are due may be deferred, and must be found again
    }
  }
  activity.shortest = std::min(activity.shortest, shortest_);
  return next;
}

Result<std::shared_ptr<PipePage>> PipePage::adopt(const std::string& folder, pid_t pid,
                                                  Terms terms) {
  auto adopted = std::make_shared<PipePage>(folder, pid, terms);
  const std::string path = adopted->path();
  auto file = open_own_file(path, O_RDWR);
  FILETIMER_TRY(file);
  // The file is read into memory and not mapped, because a hole in a mapping may raise SIGBUS.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines(kStatisticsAt / sizeof(Line));
  const PageLayout page(lines.data());
  const auto read = [&](std::size_t offset, std::size_t bytes) -> Status {
    if (read_at(file->fd.get(), page.base() + offset, bytes, offset)) {
      return {};
    }
    return errno == 0 ? failure(fmt::format("'{}' was truncated", path))
                      : system_error(fmt::format("cannot read '{}'", path));
  };
  const Status header = read(0, kNamesAt);
  if (!header && header.error().errno_value != 0) {
    return tl::unexpected<Error>(header.error());
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
  adopted->grow(slots_in_use(page));
  FILETIMER_TRY(read(kNamesAt, adopted->count_ * sizeof(SlotName)));
  for (std::size_t i = 0; i < adopted->count_; ++i) {
    Slot& slot = adopted->slots_[i];
    Entry& entry = adopted->entries_[i];
    copy_slot(slot, page.slot(i));
    const std::int64_t word = slot.deadline.load(kRelaxed);
    entry.is_saved = word != slot_word::kFree;
    if (!slot_word::is_in_use(word)) {
      adopted->free(i);
      continue;
    }
    std::string id = read_id(page.name(i));
    if (const auto other = adopted->find(id)) {
      // It was acquired again after a verdict that was not recorded: the later one counts.
      const Slot& earlier = adopted->slots_[*other];
      const bool is_later = slot.acquired.load(kRelaxed) > earlier.acquired.load(kRelaxed);
      adopted->free(is_later ? *other : i);
      if (!is_later) {
        continue;
      }
    }
    entry.has_saved_name = true;
    entry.id = std::move(id);
    adopted->by_id_.insert(adopted->place_of(entry.id), static_cast<SlotNumber>(i));
  }
  adopted->saved_count_ = static_cast<std::uint32_t>(adopted->count_);
  adopted->has_header_ = true;
  adopted->fd_ = std::move(file->fd);
  return adopted;
}

void PipePage::restore_verdict(std::string_view id) {
  if (has_open(id)) {
    const SlotNumber slot = *find(id);
    (void)try_expire(slot, slot_at(slot).deadline.load(kRelaxed));
  }
}

Status PipePage::save(const Process& worker, const std::optional<WorkerFacts>& facts) {
  is_changed_ = false;
  // No file is made before a slot is in use.
  if ((!fd_ && by_id_.empty()) || write(worker, facts)) {
    return {};
  }
  const Status failed = system_error(fmt::format("cannot write '{}'", path()));
  remove();
  return failed;
}

bool PipePage::write(const Process& worker, const std::optional<WorkerFacts>& facts) {
  if (!fd_) {
    const std::string name = path();
    ::unlink(name.c_str());
    fd_ = UniqueFd(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd_ || ::ftruncate(fd_.get(), kPageBytes) != 0) {
      return false;
    }
  }
  if ((!has_header_ || (facts && !has_facts_)) && !write_header(worker, facts)) {
    return false;
  }
  for (std::size_t slot = 0; slot < count_; ++slot) {
    if (std::exchange(entries_[slot].is_changed, false) && !write_slot(slot)) {
      return false;
    }
  }
  const auto count = static_cast<std::uint32_t>(std::min(count_, kMaxScopesPerWorker));
  return count == std::exchange(saved_count_, count) ||
         write_at(fd_.get(), &count, sizeof count, offsetof(PageHeader, slots));
}

bool PipePage::write_header(const Process& worker, const std::optional<WorkerFacts>& facts) {
  PageHeader header{};
  begin_page(header, page_flag::kMadeByServer);
  header.pid = worker.pid;
  header.start_time = worker.start_time;
  header.slots.store(saved_count_, kRelaxed);
  put_text(header.comm, worker.comm);
  if (facts) {
    const auto text_of = [](const std::optional<int>& rank) {
      return rank ? fmt::format("{}", *rank) : std::string{};
    };
    put_text(header.rank, text_of(facts->rank));
    put_text(header.local_rank, text_of(facts->local_rank));
    put_text(header.job_id, facts->job_id);
  }
  has_header_ = true;
  has_facts_ = facts.has_value();
  return write_at(fd_.get(), &header, sizeof header, 0);
}

// Writes the slot as free, then the name, then the slot: a reader that finds the slot open finds
// the right name.
bool PipePage::write_slot(std::size_t index) {
  Entry& entry = entries_[index];
  const std::size_t at = kSlotsAt + index * sizeof(Slot);
  const bool is_free = slots_[index].deadline.load(kRelaxed) == slot_word::kFree;
  if (index >= kMaxScopesPerWorker || entry.is_cancelled || (is_free && !entry.is_saved)) {
    return true;
  }
  if (!is_free && !entry.has_saved_name) {
    const std::int64_t free = slot_word::kFree;
    SlotName name{};
    write_name(name, entry.id);
    if (!write_at(fd_.get(), &free, sizeof free, at) ||
        !write_at(fd_.get(), &name, name_bytes(entry.id.size()),
                  kNamesAt + index * sizeof(SlotName))) {
      return false;
    }
    entry.has_saved_name = true;
  }
  entry.is_saved = !is_free;
  return write_at(fd_.get(), &slots_[index], sizeof(Slot), at);
}

void PipePage::note_if_removed() {
  if (fd_ && identity_of(path()) != identity_of(fd_.get())) {
    forget_file();
  }
}

void PipePage::remove() {
  if (fd_) {
    remove_page_file(path());
  }
  forget_file();
}

// The next save() makes the file anew.
void PipePage::forget_file() {
  fd_.reset();
  for (Entry& entry : entries_) {
    entry.is_changed = true;
    entry.is_saved = entry.has_saved_name = false;
  }
  is_changed_ = true;
  has_header_ = has_facts_ = false;
  saved_count_ = 0;
}

}  // namespace filetimer
