// Scopes and regions that end by themselves.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "common/page_reader.hpp"
#include "timer_client/client/client_state.hpp"
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {

TimerScope::TimerScope(TimerScope&& other) noexcept : timer_(std::exchange(other.timer_, {})) {}

TimerScope& TimerScope::operator=(TimerScope&& other) noexcept {
  if (this != &other) {
    release();
    timer_ = std::exchange(other.timer_, {});
  }
  return *this;
}

bool TimerScope::renew(Timeout timeout) {
  const Duration after = timeout.value();
  check_timeout("the timeout", after);
  unsigned todo_next = 0;
  const bool is_renewed =
      TimerClient::State::is_open(timer_) &&
      renew_scope(*timer_.slot_, timer_.number_, after.count(), false, todo_next);
  if (todo_next != 0) [[unlikely]] {
    if ((todo_next & todo::kLook) != 0) {
      follow_page(after);
    }
    if ((todo_next & todo::kWake) != 0) {
      timer_.slot_->page->wake();
    }
  }
  return is_renewed;
}

// If the page was replaced, opens the scope again on its successor, in a slot of this thread.
void TimerScope::follow_page(std::chrono::nanoseconds after) {
  SlotHandle& old = *timer_.slot_;
  SlotHandle* handle = nullptr;
  {
    const auto held = ProcessLock::instance().lock();
    OwnPage& page = ProcessPages::instance().look_again(OwnPage::of(old));
    if (&page == old.page) {
      return;
    }
    // Another thread may bind the slot to another name meanwhile, if the page was cut short.
    const bool is_own = t_slots != nullptr && old.owner.load(std::memory_order_relaxed) == t_slots;
    const std::string name = read_name(old.page->layout().name(old.index));
    OwnPage::Refusal why{};
    handle =
        page.claim(is_own ? old.key() : ScopeKey::of_name(name, old.statistics != nullptr), why);
  }
  if (handle == nullptr) {
    return;
  }
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const Slot& slot = *old.slot;
  const PageTerms terms{
      .timeout = after.count(),
      .grace_ms = slot.grace_ms.load(kRelaxed),
      .soft_ms = slot.soft_ms.load(kRelaxed),
      .signal = slot.signal.load(kRelaxed),
      .flags = static_cast<std::uint16_t>(slot.flags.load(kRelaxed) & slot_flag::kSignalFirst)};
  const TimerId timer = TimerClient::State::timer_in(*handle);
  if ((open_scope(*handle, terms) & todo::kWake) != 0) {
    handle->page->wake();
  }
  old.statistics = nullptr;  // it is counted on the new page
  TimerClient::State::release(timer_, false);
  timer_ = timer;
}

bool TimerScope::pause() {
  return TimerClient::set_paused(timer_, true);
}

bool TimerScope::resume() {
  return TimerClient::set_paused(timer_, false);
}

std::optional<TimerTimes> TimerScope::times() const {
  return TimerClient::State::times(timer_);
}

ReleaseResult TimerScope::release() noexcept {
  // Take number_ only: loading the whole TimerId with one wide read right after its fields were
  // stored separately defeats store forwarding.
  const unsigned long long number = std::exchange(timer_.number_, 0);
  SlotHandle* const handle = timer_.slot_;
  return handle != nullptr && is_open_here(*handle, number, timer_.fork_count_)
             ? release_scope(*handle, number, false)
             : ReleaseResult::kNotOpen;
}

PausedRegion::PausedRegion(TimerScope marker, OwnPage& page)
    : marker_(std::move(marker)), page_(&page), tid_(::gettid()), fork_count_(fork_watch::count()) {
  bool wake = false;
  {
    const auto held = ProcessLock::instance().lock();
    // The calls that may throw come before suspend_thread(), so that nothing has to be undone.
    slots_ = page.slots_to_suspend();
    if (slots_ != nullptr) {
      OwnPage::suspend_thread(*slots_, wake);
    }
  }
  if (wake) {
    page.wake();
  }
}

PausedRegion::~PausedRegion() {
  if (fork_count_ != fork_watch::count()) {
    return;  // the region of a parent process
  }
  bool wake = false;
  {
    const auto held = ProcessLock::instance().lock();
    while (slots_ == nullptr && page_->successor() != nullptr) {
      page_ = page_->successor();
    }
    page_->end_suspension(slots_, tid_, wake);
  }
  if (wake) {
    page_->wake();
  }
}

}  // namespace filetimer
