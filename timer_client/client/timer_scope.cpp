// Scopes and regions that end by themselves.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "common/page_reader.hpp"
#include "timer_client/client/client_state.hpp"
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {

TimerScope::TimerScope(TimerScope&& other) noexcept
    : slot_(other.slot_),
      number_(std::exchange(other.number_, 0)),
      fork_count_(other.fork_count_) {}

TimerScope& TimerScope::operator=(TimerScope&& other) noexcept {
  if (this != &other) {
    release();
    slot_ = other.slot_;
    number_ = std::exchange(other.number_, 0);
    fork_count_ = other.fork_count_;
  }
  return *this;
}

// Returns whether the scope is open and was opened in this process, not before a fork.
bool TimerScope::is_open() const noexcept {
  return slot_ != nullptr && is_open_here(*slot_, number_, fork_count_);
}

bool TimerScope::renew(Timeout timeout) {
  const Duration after = timeout.value();
  check_timeout("the timeout", after);
  unsigned todo_next = 0;
  const bool is_renewed = is_open() && renew_scope(*slot_, number_, after.count(), todo_next);
  if (todo_next != 0) [[unlikely]] {
    const bool has_moved = (todo_next & todo::kLook) != 0 && follow_page(after, Opening::kScope);
    if (!has_moved && (todo_next & todo::kWake) != 0) {
      slot_->page->wake();
    }
  }
  if (!is_renewed && number_ != 0 && fork_count_ == fork_watch::count()) {
    // The verdict came first, and the worker is in the scope still: in none that is watched.
    const auto held = ProcessLock::instance().lock();
    slot_->page->latest().note_unwatched(after);
  }
  return is_renewed;
}

// If the page was replaced, opens the scope again on its successor, in a slot of this thread.
// Returns whether it was.
bool TimerScope::follow_page(std::chrono::nanoseconds after, Opening opening) {
  SlotHandle& old = *slot_;
  SlotHandle* handle = nullptr;
  {
    const auto held = ProcessLock::instance().lock();
    OwnPage& page = ProcessPages::instance().look_again(*old.page);
    if (&page == old.page) {
      return false;
    }
    // Another thread may bind the slot to another name meanwhile, if the page was cut short.
    const bool is_own = t_slots != nullptr && old.owner.load(std::memory_order_relaxed) == t_slots;
    const std::string name = read_name(old.page->layout().name(old.index));
    handle = page.claim(is_own ? old.key() : ScopeKey::of_name(name));
  }
  if (handle == nullptr) {
    return false;
  }
  const Slot& slot = *old.slot;
  const PageTerms terms{
      .timeout = after.count(),
      .grace_ms = slot.grace_ms.load(kRelaxed),
      .soft_ms = slot.soft_ms.load(kRelaxed),
      .signal = slot.signal.load(kRelaxed),
      .flags = static_cast<std::uint16_t>(slot.flags.load(kRelaxed) & slot_flag::kSignalFirst),
      .opening = opening};
  // A first timeout counts on the new page if it was the one on the old page.
  handle->opens_first =
      old.replaced != nullptr && slot.timeout.load(kRelaxed) == old.replaced->first_timeout.count();
  TimerScope next(*handle);
  if ((open_scope(*handle, terms) & todo::kWake) != 0) {
    handle->page->wake();
  }
  old.statistics = nullptr;  // it is counted on the new page
  *this = std::move(next);
  return true;
}

bool TimerScope::set_paused(bool is_paused) {
  auto held = ProcessLock::instance().lock();
  const auto change = is_paused ? pause_scope : resume_scope;
  bool must_wake = false;
  const bool was_open = is_open() && change(*slot_, slot_flag::kPausedByCaller, must_wake);
  held.unlock();
  if (must_wake) {
    slot_->page->wake();
  }
  return was_open;
}

std::optional<TimerTimes> TimerScope::times() const {
  // A page that was cut short shows free slots.
  return is_open() && !slot_->is_free() ? std::optional(times_of(*slot_)) : std::nullopt;
}

ReleaseResult TimerScope::release() noexcept {
  // Take number_ only: moving all members out with one wide read right after they were stored
  // separately defeats store forwarding.
  const unsigned long long number = std::exchange(number_, 0);
  return slot_ != nullptr && is_open_here(*slot_, number, fork_count_)
             ? release_scope(*slot_, number)
             : ReleaseResult::kNotOpen;
}

PausedRegion::PausedRegion(TimerScope marker, OwnPage& page)
    : marker_(std::move(marker)), page_(&page), tid_(::gettid()), fork_count_(fork_watch::count()) {
  change(true);
}

PausedRegion::~PausedRegion() {
  if (fork_count_ == fork_watch::count()) {  // else the region is of a parent process
    change(false);
  }
}

void PausedRegion::change(bool begins) {
  auto held = ProcessLock::instance().lock();
  OwnPage& page = page_->latest();  // another one only if there was no page
  if (begins) {
    page.begin_region(tid_);
  }
  // Each begin: regions that began before there was a page have suspended no scope.
  const bool changes_thread = begins || page.end_region(tid_);
  const bool must_wake =
      changes_thread && ProcessPages::instance().suspend_thread(page, tid_, begins);
  held.unlock();  // opening the pipe may take long on a file system that hangs
  if (must_wake) {
    page.wake();
  }
}

}  // namespace filetimer
