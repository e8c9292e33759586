// SPDX-License-Identifier: MIT
#include "timer_server/scopes/worker_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

#include "common/wake_protocol.hpp"

namespace filetimer {

// Calls `visit` with every slot in use and its word. Returns false if the page was truncated.
template <class Visit>
bool WorkerPage::for_each_slot(Visit&& visit) {
  const std::size_t count = slot_count();
  Slot* const slots = first_slot();
  for (std::size_t i = 0; i < count; ++i) {
    visit(i, slots[i], read_deadline(slots[i]));
  }
  return is_whole();
}

// Calls `change` with the slot, and on_change() if that has changed the word.
template <class Change>
void WorkerPage::change_word(std::size_t slot, Change&& change) {
  Slot& changed = slot_at(slot);
  const std::int64_t before = changed.deadline.load(kRelaxed);
  change(changed);
  if (changed.deadline.load(kRelaxed) != before) {
    on_change(slot);
  }
}

Instant WorkerPage::scan(const Scan& scan, Found& found, Activity& activity) {
  Instant next = Instant::never();
  found.clear();
  is_new_ = false;
  const bool has_losses = scan.server.end() != Instant{} || scan.worker.end() != Instant{};
  const bool is_whole = for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    const bool has_ended = word == slot_word::kFree && start_in(slot.started) > scan.previous;
    if (slot_word::is_open(word) || has_ended) {
      activity.shortest =
          std::min(activity.shortest, timeout_of(slot, word, scan.terms.max_timeout));
    }
    note_activity(index, slot, word, activity);
    if (!slot_word::is_open(word)) {
      return;
    }
    const Duration grace = grace_before_due(slot, scan.terms.grace);
    const ScopeSpan span = has_losses
                               ? notes_of(index).losses.look(slot, word, scan.terms.max_timeout,
                                                             scan.server, scan.worker, scan.now)
                               : ScopeSpan{};
    const Instant timed_out =
        due_after_losses(slot, word, span, scan.terms.max_timeout, scan.server, scan.worker);
    Instant deadline = timed_out;
    const bool is_signalled = index < notes_.size() && notes_[index].signalled == word;
    if (grace > Duration::zero() && (is_signalled || timed_out <= scan.now)) {
      activity.shortest = std::min(activity.shortest, grace);  // so a pause in it is noticed
      if (!is_signalled) {
        next = std::min(next, scan.now + grace);
        // Otherwise the slot has another scope by now, and its worker wakes the server if needed.
        if (is_unchanged(slot, word)) {
          found.to_signal.push_back({index, word, timed_out});
        }
        return;
      }
      const Instant signalled = notes_[index].signalled_at;
      deadline = due_after_losses(signalled + grace, {signalled, grace}, scan.server, scan.worker);
    }
    if (deadline <= scan.now) {
      found.due.push_back({index, word, deadline});
      return;
    }
    next = std::min(next, deadline);
    if ((slot.soft_ms.load(kRelaxed) | scan.terms.warn_at) == 0) {
      return;
    }
    const Instant warn = soft_time_of(slot, word, timed_out, scan.terms.warn_at);
    if (warn > scan.now) {
      next = std::min(next, warn);
    } else if (notes_of(index).warned != word && is_unchanged(slot, word)) {
      notes_of(index).warned = word;
      found.soft.push_back({index, word, warn});
    }
  });
  if (!is_whole) {
    found.clear();
    return Instant::never();
  }
  return next;
}

void WorkerPage::note_activity(std::size_t index, const Slot& slot, std::int64_t word,
                               Activity& activity) {
  if (word == slot_word::kIdleWatch) {
    const std::int64_t timeout = slot.timeout.load(kRelaxed);
    if (timeout > 0 && timeout <= kMaxTimeout.count()) {
      activity.watches.push_back({this, index, Duration{timeout}, start_in(slot.started)});
      activity.shortest = std::min(activity.shortest, Duration{timeout});
    }
  }
  if (word == slot_word::kFree || word == slot_word::kReleasedLate ||
      word == slot_word::kIdleWatch) {
    // Relaxed suffices, because `left` is written before the word that was read. A time in the
    // future is ignored. A library of the worker without an idle timeout does not note `left`.
    const bool is_scope = !is_whole_process(slot) && !is_idle_watch(slot);
    for (const Instant left :
         {Instant{slot.left.load(kRelaxed)}, is_scope ? start_in(slot.started) : Instant{}}) {
      if (left > activity.last_left && left <= Instant::now()) {
        activity.last_left = left;
      }
    }
  } else if (slot_word::is_open(word) || !is_idle_watch(slot)) {
    activity.is_inside = activity.is_inside || !is_whole_process(slot);
  }
}

WorkerPage::Activity WorkerPage::activity() {
  Activity activity;
  for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    note_activity(index, slot, word, activity);
  });
  return activity;
}

void WorkerPage::move_notes(std::size_t slot, std::int64_t before, std::int64_t word) {
  if (slot >= notes_.size()) {
    return;
  }
  for (std::int64_t* const noted : {&notes_[slot].warned, &notes_[slot].signalled}) {
    if (*noted == before) {
      *noted = word;
    }
  }
}

bool WorkerPage::try_expire(std::size_t slot, std::int64_t word) {
  bool won = false;
  change_word(slot, [&](Slot& open) { won = filetimer::try_expire(open, word); });
  return won && is_whole();
}

bool WorkerPage::try_expire_idle(std::size_t slot, Instant deadline) {
  if (!filetimer::try_expire_idle(slot_at(slot), deadline.ns)) {
    return false;
  }
  notes_of(slot).judged_idle = deadline;
  return is_whole();
}

bool WorkerPage::is_open(std::size_t slot, std::int64_t word) {
  return read_deadline(slot_at(slot)) == word && is_whole();
}

std::optional<Instant> WorkerPage::released_late_at(const Due& scope) {
  const Instant now = Instant::now();
  const Slot& judged = slot_at(scope.slot);
  const bool is_begun_anew = is_idle_watch(judged) && judged.started.load(kRelaxed) > scope.word;
  // Any word but that of the verdict was written by the worker, `left` before the word.
  const std::int64_t present = read_deadline(judged);
  const Instant left{judged.left.load(kRelaxed)};
  if (!is_whole() || (present == slot_word::expired(scope.word) && !is_begun_anew)) {
    return std::nullopt;
  }
  // The word of a paused scope is no time.
  return present == slot_word::kReleasedLate && left >= scope.deadline && left <= now ? left : now;
}

void WorkerPage::finish(std::size_t slot, std::int64_t word) {
  bool is_idle = false;
  change_word(slot, [&](Slot& judged) {
    finish_verdict(judged, word);
    is_idle = is_idle_watch(judged);
  });
  if (is_idle) {
    notes_of(slot).judged_idle = {word};  // an earlier server may have given the verdict
  }
}

void WorkerPage::reopen(std::size_t slot, std::int64_t word) {
  change_word(slot, [&](Slot& judged) { take_verdict_back(judged, word); });
  if (slot < notes_.size()) {
    notes_[slot].judged_idle = {};
  }
}

void WorkerPage::acknowledge_late_release(std::size_t slot) {
  change_word(slot, [](Slot& released) { filetimer::acknowledge_late_release(released); });
}

std::vector<WorkerPage::Judged> WorkerPage::judged_slots() {
  std::vector<Judged> judged;
  const bool is_whole = for_each_slot([&](std::size_t index, const Slot&, std::int64_t word) {
    const bool released = word == slot_word::kReleasedLate;
    if (!released && !slot_word::is_expired(word)) {
      return;
    }
    if (auto reading = read_slot(index, word)) {
      judged.push_back({index, released ? 0 : -word, released, std::move(*reading)});
    }
  });
  return is_whole ? judged : std::vector<Judged>{};
}

// Reads the names of the slots that it returns only, because a thousand workers may have a thousand
// scopes each.
std::vector<SlotReading> WorkerPage::open_slots(std::size_t most, std::size_t* count) {
  struct Place {
    std::int64_t acquired;
    std::size_t index;
    std::int64_t word;
  };
  std::vector<Place> places;
  for_each_slot([&](std::size_t index, const Slot& slot, std::int64_t word) {
    if (slot_word::is_in_use(word)) {
      places.push_back({slot.acquired.load(kRelaxed), index, word});
    }
  });
  if (count != nullptr) {
    *count = is_whole() ? places.size() : 0;
  }
  if (places.size() > most) {
    const auto rest = places.begin() + static_cast<std::ptrdiff_t>(most);
    std::ranges::nth_element(places, rest, std::greater<>{}, &Place::acquired);
    places.erase(rest, places.end());
    std::ranges::sort(places, {}, &Place::index);
  }
  std::vector<SlotReading> readings;
  readings.reserve(places.size());
  for (const Place& place : places) {
    if (auto reading = read_slot(place.index, place.word)) {
      readings.push_back(std::move(*reading));
    }
  }
  if (!readings.empty()) {
    unmap_names();
  }
  return is_whole() ? readings : std::vector<SlotReading>{};
}

void WorkerPage::unmap_names() const {
  if (layout_) {
    static const std::size_t begin = names_begin(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    ::madvise(layout_->base() + begin, kStatisticsAt - begin, MADV_DONTNEED);
  }
}

std::size_t WorkerPage::watched_count() {
  std::size_t count = 0;
  const bool is_whole = for_each_slot([&](std::size_t, const Slot&, std::int64_t word) {
    count += slot_word::is_open(word) ? 1U : 0U;
  });
  return is_whole ? count : 0;
}

WorkerPage::Wait WorkerPage::longest_unseen(Instant before, const Scan& scan) {
  Wait longest;
  if (!is_new_ && scan.now - scan.previous <= Looks::kLeastTolerated) {
    return longest;
  }
  for_each_slot([&](std::size_t, const Slot& slot, std::int64_t word) {
    const Instant changed = last_change_of(slot, word);
    const Duration most = scan.terms.max_timeout;
    if (!slot_word::is_open(word) ||
        (!is_new_ && (changed <= scan.previous || due_time(slot, word, most) >= before))) {
      return;
    }
    const Duration timeout = timeout_of(slot, word, most);
    const Duration given = scan.server.extended(scan.now, {changed, timeout}) - scan.now;
    const Duration unseen = std::min(scan.now - changed, timeout) - given;
    if (unseen > std::max(longest.length, looks_for(timeout).tolerated)) {
      longest = {unseen, scan.now + -given};
    }
  });
  return longest;
}

Result<std::shared_ptr<MappedPage>> MappedPage::open(const std::string& path, std::string name) {
  auto opened = open_own_file(path, O_RDWR, "it");
  FILETIMER_TRY(opened);
  if (const auto bytes = static_cast<std::uint64_t>(opened->status.st_size); bytes != kPageBytes) {
    return failure(fmt::format("it has {} bytes: expected {}", bytes, kPageBytes));
  }
  auto file =
      MappedFile::map(std::move(opened->fd), MappedFile::Access::kReadWrite, kPageBytes, "it");
  FILETIMER_TRY(file);
  std::shared_ptr<MappedPage> page(new MappedPage(path, std::move(name), std::move(*file)));
  auto claims = read_claims(page->layout(), kPageBytes);
  if (!page->is_whole()) {
    return failure("it was truncated while it was read");
  }
  FILETIMER_TRY(claims);
  page->claims_ = std::move(*claims);
  return page;
}

Result<pid_t> MappedPage::owner() const {
  const auto lock = lock_state(file_.descriptor());
  FILETIMER_TRY(lock);
  if (!lock->is_held) {
    return failure("no process holds its lock", ESRCH);
  }
  if (lock->holder == 0) {
    return failure("the holder of its lock is outside the server's pid namespace");
  }
  return lock->holder;
}

bool MappedPage::has_lost_lock(bool opens) const {
  const auto again = opens ? open_own_file(path_, O_RDWR) : Result<OwnFile>();
  const auto lock = lock_state(again && again->fd ? again->fd.get() : file_.descriptor());
  return lock && !lock->is_held;
}

}  // namespace filetimer
