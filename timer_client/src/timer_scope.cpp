// Scopes and regions that end by themselves.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <filetimer/timer_client.hpp>

#include "timer_client/src/client_state.hpp"
#include "timer_client/src/scope_terms.hpp"

namespace filetimer {

TimerScope::TimerScope(std::shared_ptr<TimerClient::State> state, TimerId timer) noexcept
    : state_(std::move(state)), timer_(timer) {}

TimerScope::TimerScope(TimerScope&& other) noexcept
    : state_(std::move(other.state_)), timer_(std::exchange(other.timer_, {})) {}

TimerScope& TimerScope::operator=(TimerScope&& other) noexcept {
  if (this != &other) {
    release();
    state_ = std::move(other.state_);
    timer_ = std::exchange(other.timer_, {});
  }
  return *this;
}

bool TimerScope::renew(std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  bool wake = false;
  if (SlotHandle* const handle = timer_.slot_) {
    const bool renewed = is_open_here(*handle, timer_.number_, timer_.fork_count_) &&
                         renew_scope(*handle, timer_.number_, after.count(), false, wake);
    if (wake) {
      handle->page->wake();
    }
    return renewed;
  }
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->renew(timer_, after, wake);
}

bool TimerScope::pause() {
  return TimerClient::State::set_paused(state_.get(), timer_, true);
}

bool TimerScope::resume() {
  return TimerClient::State::set_paused(state_.get(), timer_, false);
}

UnlimitedRegion::UnlimitedRegion(std::shared_ptr<TimerClient::State> state, TimerScope marker)
    : state_(std::move(state)),
      marker_(std::move(marker)),
      tid_(::gettid()),
      fork_count_(fork_watch::count()) {
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    // Before what may throw a second time, so that nothing has to be undone.
    slots_ = state_->page != nullptr ? state_->page->slots_to_suspend() : nullptr;
    state_->outbox.suspend_thread(tid_, Instant::now());
    if (slots_ != nullptr) {
      OwnPage::suspend_thread(*slots_, wake);
    }
    Keeper::instance().deliver(state_->outbox);
  }
  if (wake) {
    state_->page->wake();
  }
}

UnlimitedRegion::~UnlimitedRegion() {
  if (fork_count_ != fork_watch::count()) {
    return;  // its parent's
  }
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    if (slots_ != nullptr) {
      state_->page->end_suspension(slots_, tid_, wake);
    }
    state_->outbox.end_suspension(tid_, Instant::now());
    Keeper::instance().deliver(state_->outbox);
  }
  if (wake) {
    state_->page->wake();
  }
}

std::optional<TimerTimes> TimerScope::times() const {
  if (const SlotHandle* const handle = timer_.slot_) {
    return is_open_here(*handle, timer_.number_, timer_.fork_count_)
               ? std::optional(times_of(*handle))
               : std::nullopt;
  }
  if (!state_) {
    return std::nullopt;
  }
  const auto held = Keeper::instance().lock();
  return state_->times(timer_);
}

bool TimerScope::release() noexcept {
  // Not copied whole: reading in one what was written in two halves stalls the processor.
  const unsigned long long number = std::exchange(timer_.number_, 0);
  if (SlotHandle* const handle = timer_.slot_) [[likely]] {
    return is_open_here(*handle, number, timer_.fork_count_) &&
           release_scope(*handle, number, false);
  }
  return release_on_pipe(number);
}

bool TimerScope::release_on_pipe(unsigned long long number) noexcept {
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->release(TimerId(nullptr, number, timer_.fork_count_));
}

}  // namespace filetimer
