// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe/outbox.hpp"

#include <algorithm>
#include <new>

#include "timer_client/src/messages.hpp"
#include "timer_client/src/unix_deadline.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

struct BackOff {
  Duration first;
  Duration longest;
};
constexpr BackOff kWhenFull{milliseconds{5}, milliseconds{250}};
constexpr BackOff kWithoutServer{milliseconds{50}, milliseconds{1000}};

}  // namespace

void Outbox::acquire(Number number, TimerRequest request, Instant deadline, Owner owner) {
  Timers made;
  Timer& timer = made.emplace_back();
  timer.number = number;
  timer.request = std::move(request);
  timer.acquired = Instant::now();
  timer.deadline = deadline;
  timer.owner = owner;
  timer.warn_after = timer.request.warn_after;
  open_.emplace(number, made.begin());
  if (is_scope_of_ours(timer)) {
    ++inside_;
    if (suspensions_.contains(timer.request.tid)) {
      timer.is_suspended = true;
      hold(timer, timer.acquired);
    }
  }
  pending_.splice(pending_.end(), made);
}

bool Outbox::renew(Number number, Duration timeout, Instant deadline) {
  const auto found = open_.find(number);
  if (found == open_.end()) {
    return false;
  }
  Timer& timer = *found->second;
  if (timer.is_paused || timer.is_suspended) {
    timer.timeout = timeout;
    timer.left = timeout;
    return true;
  }
  timer.request.timeout = timeout;
  timer.request.warn_after = timer.warn_after;
  timer.deadline = deadline;
  make_pending(found->second);
  return true;
}

bool Outbox::pause(Number number, Pauser by, Instant now) {
  const auto found = open_.find(number);
  if (found == open_.end()) {
    return false;
  }
  Timer& timer = *found->second;
  const bool was_held = timer.is_paused || timer.is_suspended;
  (by == Pauser::kCaller ? timer.is_paused : timer.is_suspended) = true;
  if (!was_held) {
    hold(timer, now);
    make_pending(found->second);
  }
  return true;
}

bool Outbox::resume(Number number, Pauser by, Instant now) {
  const auto found = open_.find(number);
  if (found == open_.end()) {
    return false;
  }
  Timer& timer = *found->second;
  const bool was_held = timer.is_paused || timer.is_suspended;
  (by == Pauser::kCaller ? timer.is_paused : timer.is_suspended) = false;
  if (was_held && !timer.is_paused && !timer.is_suspended) {
    timer.deadline = now + timer.left;
    timer.request.timeout = timer.timeout;
    // It has been warned about, if it was open that long before the pause.
    const bool is_warned =
        timer.timeout != kForever && timer.left <= timer.timeout - timer.warn_after;
    timer.request.warn_after = is_warned ? Duration::zero() : timer.warn_after;
    make_pending(found->second);
  }
  return true;
}

void Outbox::suspend_thread(pid_t tid, Instant now) {
  if (++suspensions_[tid] > 1) {
    return;
  }
  for (const auto& [number, timer] : open_) {
    if (is_scope_of_ours(*timer) && timer->request.tid == tid) {
      pause(number, Pauser::kRegion, now);
    }
  }
}

void Outbox::end_suspension(pid_t tid, Instant now) {
  const auto found = suspensions_.find(tid);
  if (found == suspensions_.end() || --found->second > 0) {
    return;
  }
  suspensions_.erase(found);
  for (const auto& [number, timer] : open_) {
    if (timer->request.tid == tid) {
      resume(number, Pauser::kRegion, now);
    }
  }
}

void Outbox::hold(Timer& timer, Instant now) noexcept {
  timer.left = timer.deadline.is_never() ? kForever : std::max(timer.deadline - now, Duration{1});
  timer.timeout = timer.request.timeout;
  timer.deadline = Instant::never();
  timer.request.timeout = kForever;
  timer.request.warn_after = Duration::zero();  // nobody is warned about it
}

void Outbox::watch_idleness(Number number, TimerRequest request) {
  idle_ = IdleWatch{number, std::move(request)};
}

bool Outbox::note_activity(bool is_inside) noexcept {
  if (!idle_ || idle_->is_open == !is_inside) {
    return false;
  }
  if (is_inside) {
    release(idle_->number, Instant::now());
    idle_->is_open = false;
    return true;
  }
  try {
    TimerRequest request = idle_->request;
    auto id = ids_.open(request.pid, request.scope);
    if (id) {
      request.timer_id = std::move(*id);
      const Instant deadline = Instant::now() + request.timeout;
      acquire(idle_->number, std::move(request), deadline, Owner::kIdleWatch);
      idle_->is_open = true;
    }
  } catch (const std::bad_alloc&) {
    // Not watched this time.
  }
  return idle_->is_open;
}

std::optional<Outbox::Times> Outbox::times(Number number) const {
  const auto found = open_.find(number);
  return found == open_.end() ? std::nullopt : std::optional(times_of(*found->second));
}

Outbox::Released Outbox::release(Number number, Instant now) noexcept {
  const auto found = open_.find(number);
  if (found == open_.end()) {
    return Released::kNotOpen;
  }
  const auto timer = found->second;
  const bool in_time = now < timer->deadline;
  open_.erase(found);
  if (is_scope_of_ours(*timer)) {
    --inside_;
  }
  close(timer);
  return in_time ? Released::kInTime : Released::kTooLate;
}

void Outbox::release_those_of_client(Instant now) noexcept {
  for (auto next = open_.begin(); next != open_.end();) {
    const auto timer = (next++)->second;
    if (timer->owner != Owner::kScope) {
      release(timer->number, now);
    }
  }
  idle_.reset();
}

void Outbox::flush(std::size_t budget, Sender sender) noexcept {
  bool some_were_sent = false;
  for (; !pending_.empty() && budget > 0; --budget) {
    Timer& timer = pending_.front();
    if (!timer.request.release) {
      // The deadline is kept on the monotonic clock and told on the wall clock as it stands now.
      timer.request.expiration_time = unix_time_of(timer.deadline);
    }
    const Transport::Sent sent = transport_->send(timer.request);
    if (sent != Transport::Sent::kYes) {
      stopped(sent, some_were_sent, sender);
      return;
    }
    some_were_sent = true;
    delivered();
  }
  if (some_were_sent) {
    found_watched(true);
    last_stop_ = Transport::Sent::kYes;
    next_try_ = Instant{};  // what is left over the budget is due at once
  }
}

void Outbox::forget_all() noexcept {
  open_.clear();
  inside_ = 0;
  suspensions_.clear();
  idle_.reset();
  told_.clear();
  pending_.clear();
  last_stop_ = Transport::Sent::kYes;
}

void Outbox::make_pending(Timers::iterator timer) noexcept {
  if (!timer->is_pending) {
    timer->is_pending = true;
    pending_.splice(pending_.end(), told_, timer);
  }
}

// Of a timer that no server ever heard of, none has to hear again.
void Outbox::close(Timers::iterator timer) noexcept {
  ids_.close(timer->request.pid);
  if (timer->may_be_known) {
    timer->request.release = true;
    make_pending(timer);
  } else {
    ids_.give_back(timer->request.pid, timer->request.timer_id);
    list_of(*timer).erase(timer);
  }
}

void Outbox::delivered() noexcept {
  const auto timer = pending_.begin();
  if (timer->request.release) {
    ids_.give_back(timer->request.pid, timer->request.timer_id);
    pending_.erase(timer);
    return;
  }
  timer->may_be_known = true;
  timer->is_pending = false;
  told_.splice(told_.end(), pending_, timer);
}

// Told once for each change.
void Outbox::found_watched(bool watched) noexcept {
  if (std::exchange(is_watched_, watched) == watched ||
      !client_messages::is_told(watched ? LogLevel::kInfo : LogLevel::kWarning)) {
    return;
  }
  try {
    const std::string target = transport_->target();
    if (watched) {
      client_messages::info("a timer server reads '{}' again", target);
    } else {
      client_messages::warning(
          "nobody reads '{}': scopes ({} open) are not watched until a timer server is back",
          target, open_.size());
    }
  } catch (const std::bad_alloc&) {
    // A message less.
  }
}

void Outbox::stopped(Transport::Sent why, bool some_were_sent, Sender sender) noexcept {
  found_watched(why == Transport::Sent::kTryLater);
  if (why == Transport::Sent::kNoServer) {
    // The next server knows nothing: all that is open is announced again.
    for (Timer& timer : told_) {
      timer.is_pending = true;
    }
    pending_.splice(pending_.end(), told_);
  }
  const BackOff& back_off = why == Transport::Sent::kNoServer ? kWithoutServer : kWhenFull;
  if (some_were_sent || why != last_stop_) {
    pause_ = back_off.first;
  } else if (sender == Sender::kKeeper) {
    pause_ = std::min(2 * pause_, back_off.longest);
  } else {
    return;  // the keeper's next try stands
  }
  last_stop_ = why;
  next_try_ = Instant::now() + pause_;
}

}  // namespace filetimer
