// SPDX-License-Identifier: MIT
#include "timer_server/pages/worker_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/wake_protocol.hpp"
#include "timer_server/pages/ended_statistics.hpp"
#include "timer_server/pages/page_guard.hpp"

namespace filetimer {
namespace {

// The worker is in the scope, judged or not.
bool is_inside(std::int64_t word) {
  return slot_word::is_open(word) || slot_word::is_expired(word);
}

}  // namespace

WorkerPage::WorkerPage(std::string name, UniqueFd fd, MappedFile file)
    : name_(std::move(name)), fd_(std::move(fd)), file_(std::move(file)), layout_(file_.data()) {}

template <class Work>
void WorkerPage::guarded(Work&& work) {
  if (!is_whole_) {
    return;
  }
  const PageGuard guard(layout_.base(), kPageBytes);
  work();
  is_whole_ = !PageGuard::faulted();
}

// `visit` gets every slot in use with its word; false when the page was cut short meanwhile.
template <class Visit>
bool WorkerPage::for_each_slot(Visit&& visit) {
  guarded([&] {
    const std::size_t count = slots_in_use(layout_);
    for (std::size_t i = 0; i < count; ++i) {
      visit(i, layout_.slot(i), read_deadline(layout_.slot(i)));
    }
  });
  return is_whole_;
}

Result<WorkerPage> WorkerPage::open(const std::string& path, std::string name) {
  // NONBLOCK: a FIFO would wait for its other end. NOFOLLOW: a symlink leads where it likes.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!fd) {
    return errno == ELOOP ? failure("it is a symlink: expected a regular file")
                          : system_error("it cannot be opened");
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) {
    return system_error("cannot look at it");
  }
  if (!S_ISREG(st.st_mode)) {
    return failure("it is no regular file");
  }
  if (st.st_uid != ::geteuid()) {
    return failure(fmt::format("it belongs to user {}: expected user {}", st.st_uid, ::geteuid()));
  }
  if (static_cast<std::uint64_t>(st.st_size) != kPageBytes) {
    return failure(fmt::format("it has {} bytes: expected {}", st.st_size, kPageBytes));
  }
  // Through the descriptor: what is mapped is what was checked.
  auto file = MappedFile::map(fmt::format("/proc/self/fd/{}", fd.get()),
                              MappedFile::Access::kReadWrite, kPageBytes);
  if (!file) {
    return tl::unexpected<Error>(std::move(file.error()));
  }
  file->close_descriptor();  // `fd` is enough
  WorkerPage page(std::move(name), std::move(fd), std::move(*file));
  Result<PageClaims> claims = PageClaims{};
  page.guarded([&] { claims = read_claims(page.layout_, kPageBytes); });
  if (!page.is_whole_) {
    return failure("it was cut short while it was read");
  }
  if (!claims) {
    return tl::unexpected<Error>(std::move(claims.error()));
  }
  page.claims_ = std::move(*claims);
  return page;
}

Result<pid_t> WorkerPage::owner() const {
  const auto lock = lock_state(fd_.get());
  if (!lock) {
    return tl::unexpected<Error>(lock.error());
  }
  if (!lock->is_held) {
    return tl::unexpected<Error>(Error{"nobody holds its lock", ESRCH});
  }
  if (lock->holder == 0) {
    return failure("its lock is held by a process that cannot be seen from here");
  }
  return lock->holder;
}

void WorkerPage::close_descriptor() {
  fd_.reset();
}

Instant WorkerPage::scan(Instant now, Duration max_timeout, std::vector<Due>& due, SoftDue& soft,
                         Activity& activity) {
  Instant next = Instant::never();
  const std::size_t known = due.size();
  if (!postponed_.empty()) {
    guarded([&] {
      std::erase_if(postponed_, [this](const auto& entry) {
        return read_deadline(layout_.slot(entry.first)) != entry.second.word;
      });
    });
  }
  const bool is_whole = for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    note_activity(index, slot, word, activity);
    if (!slot_word::is_open(word)) {
      return;
    }
    const Instant deadline = deadline_of(index, slot, word, max_timeout);
    if (deadline <= now) {
      due.push_back({index, word, deadline});
      return;
    }
    next = std::min(next, deadline);
    if ((slot.soft_ms.load(std::memory_order_relaxed) | soft.warn_at) == 0) {
      return;
    }
    const Instant warn = soft_time_of(slot, word, deadline, soft.warn_at);
    if (warn > now) {
      next = std::min(next, warn);
    } else if (!is_warned(index, word) && still_says(slot, word)) {
      // Else it is another scope by now, which wakes us if it has to.
      note_warned(index, word);
      soft.slots.push_back({index, word, warn});
    }
  });
  if (!is_whole) {
    due.resize(known);
    soft.slots.clear();
    return Instant::never();
  }
  return next;
}

void WorkerPage::note_activity(std::size_t index, const Slot& slot, std::int64_t word,
                               Activity& activity) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (word == slot_word::kIdleWatch) {
    const std::int64_t timeout = slot.timeout.load(kRelaxed);
    if (timeout > 0 && timeout <= kMaxTimeout.count()) {
      const Instant since{std::max<std::int64_t>(slot.started.load(kRelaxed), 0)};
      activity.watches.push_back({this, index, Duration{timeout}, since});
    }
  } else if (word == slot_word::kFree || word == slot_word::kReleasedLate) {
    // Relaxed: written before the word that was read. What is not in the past is no such time.
    const Instant left{slot.left.load(kRelaxed)};
    if (left > activity.last_left && left <= Instant::now()) {
      activity.last_left = left;
    }
  } else {
    activity.is_inside = activity.is_inside || slot_word::is_open(word) || !is_idle_watch(slot);
  }
}

std::optional<Instant> WorkerPage::idle_due(const Activity::IdleWatch& watch, Instant last_left) {
  const auto judged = judged_idle_.find(watch.slot);
  if (judged != judged_idle_.end() && last_left <= judged->second) {
    return std::nullopt;
  }
  const Instant due = last_left + watch.timeout;
  const Postponed* const given = postponed(watch.slot, slot_word::kIdleWatch);
  if (given != nullptr && due <= given->until) {
    return given->until;
  }
  postponed_.erase(watch.slot);  // it was in a scope since
  return due;
}

WorkerPage::Activity WorkerPage::activity() {
  Activity activity;
  for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    note_activity(index, slot, word, activity);
  });
  return activity;
}

void WorkerPage::recall_idle(Instant deadline) {
  for (const Activity::IdleWatch& watch : activity().watches) {
    judged_idle_[watch.slot] = std::max(judged_idle_[watch.slot], deadline);
  }
}

const WorkerPage::Postponed* WorkerPage::postponed(std::size_t slot, std::int64_t word) const {
  if (postponed_.empty()) {
    return nullptr;
  }
  const auto found = postponed_.find(slot);
  return found != postponed_.end() && found->second.word == word ? &found->second : nullptr;
}

Instant WorkerPage::deadline_of(std::size_t index, const Slot& slot, std::int64_t word,
                                Duration max_timeout) const {
  const Postponed* const given = postponed(index, word);
  return given != nullptr ? given->until : due_time(slot, word, max_timeout);
}

void WorkerPage::postpone(std::size_t slot, std::int64_t word, Instant until) {
  const Postponed* const before = postponed(slot, word);
  postponed_[slot] = {word, until, before != nullptr && before->is_extended};
}

void WorkerPage::postpone_all(Duration max_timeout,
                              const std::function<Extension(const OpenSlot&)>& longer) {
  for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    const bool is_idle = word == slot_word::kIdleWatch;
    if (!slot_word::is_open(word) && !is_idle) {
      return;
    }
    const Postponed* const before = postponed(index, word);
    const std::int64_t asked = slot.timeout.load(std::memory_order_relaxed);
    const bool is_endless = asked < 0 || slot_word::is_paused(word);
    OpenSlot open{{},
                  std::min(is_endless ? kForever : Duration{asked}, max_timeout),
                  before != nullptr && before->is_extended};
    if (!is_idle) {
      open.deadline = deadline_of(index, slot, word, max_timeout);
    } else if (before != nullptr) {
      open.deadline = before->until;  // else at most now, since that is when it is reckoned
    }
    const Extension given = longer(open);
    if (given.deadline != open.deadline || given.is_extended != open.is_extended) {
      postponed_[index] = {word, given.deadline, given.is_extended};
    }
  });
}

void WorkerPage::note_warned(std::size_t slot, std::int64_t word) {
  if (warned_.size() <= slot) {
    warned_.resize(slot + 1);
  }
  warned_[slot] = word;
}

void WorkerPage::recall_warnings(const std::function<bool(const SlotReading&)>& was_warned) {
  for_each_slot([&](std::size_t index, const Slot&, std::int64_t word) {
    const auto reading = slot_word::is_open(word) ? read_slot(layout_, index, word) : std::nullopt;
    if (reading && was_warned(*reading)) {
      note_warned(index, word);
    }
  });
}

bool WorkerPage::try_expire(std::size_t slot, std::int64_t word) {
  bool won = false;
  guarded([&] { won = filetimer::try_expire(layout_.slot(slot), word); });
  return won && is_whole_;
}

bool WorkerPage::try_expire_idle(std::size_t slot, Instant deadline) {
  bool won = false;
  guarded([&] { won = filetimer::try_expire_idle(layout_.slot(slot), deadline.ns); });
  if (won) {
    judged_idle_[slot] = deadline;
  }
  return won && is_whole_;
}

std::optional<SlotReading> WorkerPage::read(std::size_t slot, std::int64_t word) {
  std::optional<SlotReading> reading;
  guarded([&] { reading = read_slot(layout_, slot, word); });
  return is_whole_ ? reading : std::nullopt;
}

bool WorkerPage::is_open(std::size_t slot, std::int64_t word) {
  std::int64_t now = slot_word::kFree;
  guarded([&] { now = read_deadline(layout_.slot(slot)); });
  return is_whole_ && now == word;
}

void WorkerPage::let_go_of_names() {
  ::madvise(layout_.base() + kNamesAt, kStatisticsAt - kNamesAt, MADV_DONTNEED);
}

bool WorkerPage::was_released_late(std::size_t slot, std::int64_t word) {
  std::int64_t now = 0;
  bool is_begun_anew = false;
  guarded([&] {
    const Slot& judged = layout_.slot(slot);
    now = read_deadline(judged);
    is_begun_anew = is_idle_watch(judged) && judged.started.load(std::memory_order_relaxed) > word;
  });
  // Any other word than the verdict's own is the worker's doing.
  return is_whole_ && (now != slot_word::expired(word) || is_begun_anew);
}

void WorkerPage::finish(std::size_t slot, std::int64_t word) {
  guarded([&] { finish_verdict(layout_.slot(slot), word); });
}

std::vector<WorkerPage::Judged> WorkerPage::judged_slots() {
  std::vector<Judged> judged;
  const bool is_whole = for_each_slot([&](std::size_t index, const Slot&, std::int64_t word) {
    const bool released = word == slot_word::kReleasedLate;
    if (!released && !slot_word::is_expired(word)) {
      return;
    }
    if (auto reading = read_slot(layout_, index, word)) {
      judged.push_back({index, released ? 0 : -word, released, std::move(*reading)});
    }
  });
  return is_whole ? judged : std::vector<Judged>{};
}

void WorkerPage::reopen(std::size_t slot, std::int64_t word) {
  guarded([&] { take_verdict_back(layout_.slot(slot), word); });
}

void WorkerPage::acknowledge_late_release(std::size_t slot) {
  guarded([&] { filetimer::acknowledge_late_release(layout_.slot(slot)); });
}

template <class Wanted>
std::vector<SlotReading> WorkerPage::read_those(Wanted&& wanted) {
  std::vector<SlotReading> readings;
  const bool is_whole = for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    if (!wanted(index, slot, word)) {
      return;
    }
    if (auto reading = read_slot(layout_, index, word)) {
      readings.push_back(std::move(*reading));
    }
  });
  if (!readings.empty()) {
    let_go_of_names();
  }
  return is_whole ? readings : std::vector<SlotReading>{};
}

std::vector<SlotReading> WorkerPage::open_slots() {
  return read_those([](std::size_t, const Slot&, std::int64_t word) { return is_inside(word); });
}

template <class Wanted>
std::size_t WorkerPage::count_those(Wanted&& wanted) {
  std::size_t count = 0;
  const bool is_whole = for_each_slot([&](std::size_t, const Slot&, std::int64_t word) {
    if (wanted(word)) {
      ++count;
    }
  });
  return is_whole ? count : 0;
}

std::size_t WorkerPage::open_count() {
  return count_those(is_inside);
}

std::size_t WorkerPage::watched_count() {
  return count_those(slot_word::is_open);
}

std::vector<SlotReading> WorkerPage::take_slots_over(Duration timeout) {
  return read_those([&](std::size_t index, const Slot& slot, std::int64_t word) {
    if (!is_inside(word) || slot.timeout.load(std::memory_order_relaxed) <= timeout.count()) {
      return false;
    }
    if (over_.size() <= index) {
      over_.resize(index + 1);
    }
    return std::exchange(over_[index], word) != word;
  });
}

std::vector<SlotReading> WorkerPage::take_thread_ended() {
  std::vector<SlotReading> ended = read_those([](std::size_t, const Slot& slot, std::int64_t word) {
    return slot_word::is_open(word) &&
           (slot.flags.load(std::memory_order_relaxed) & slot_flag::kThreadEnded) != 0;
  });
  std::erase_if(ended, [this](const SlotReading& reading) {
    const bool is_told = std::ranges::find(told_, reading.acquired.ns) != told_.end();
    if (!is_told) {
      told_.push_back(reading.acquired.ns);
    }
    return is_told;
  });
  // A worker that makes up times must not make us grow.
  if (told_.size() > kMaxScopesPerWorker) {
    told_.erase(told_.begin(), told_.end() - static_cast<std::ptrdiff_t>(kMaxScopesPerWorker));
  }
  return ended;
}

std::uint32_t WorkerPage::dump_signal() {
  std::uint32_t signal = 0;
  guarded([&] { signal = layout_.header().dump_signal.load(std::memory_order_relaxed); });
  return is_whole_ ? signal : 0;
}

void WorkerPage::add_statistics(EndedStatistics& sums) {
  guarded([&] { sums.add(layout_); });
}

}  // namespace filetimer
