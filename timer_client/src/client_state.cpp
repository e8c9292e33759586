// SPDX-License-Identifier: MIT
#include "timer_client/src/client_state.hpp"

#include <fmt/format.h>

#include "common/limits.hpp"
#include "common/scope_name.hpp"
#include "common/text.hpp"
#include "timer_client/src/scope_terms.hpp"

namespace filetimer {
namespace {

[[noreturn]] void throw_limit(pid_t pid, std::string_view name) {
  throw TimerError(
      fmt::format("{} scopes are open in process {}, which is the limit: '{}' was not opened",
                  kMaxScopesPerWorker, pid, printable(name)));
}

}  // namespace

SlotHandle* TimerClient::State::claim_with_lock(ScopeKey key, bool has_lock) {
  std::unique_lock<std::mutex> held;
  if (!has_lock) {
    held = Keeper::instance().lock();
  }
  OwnPage::Refusal why{};
  SlotHandle* const handle = page->claim(key, why);
  if (handle == nullptr && why == OwnPage::Refusal::kLimit) {
    throw_limit(::getpid(), shown_name(key));
  }
  return handle;
}

TimerId TimerClient::State::acquire(std::string_view name, Duration after,
                                    const ScopeOptions& options, bool& wake) {
  if (uses_page(options)) {
    if (is_page_closed()) {
      page->note_unwatched();
      return {};
    }
    if (SlotHandle* const handle = claim(ScopeKey::of_name(name, has_statistics), true)) {
      const TimerId timer = timer_in(*handle);
      wake = open_scope(*handle, terms_of(after, options, number));
      return timer;
    }
  }
  // Made valid before it is cut: what a reader of the wire sees is what tells two names apart.
  return acquire_on_pipe(bounded_scope_name(valid_utf8(name)), after, options,
                         Outbox::Owner::kClient);
}

TimerId TimerClient::State::acquire_on_pipe(std::string scope, Duration after,
                                            const ScopeOptions& options, Outbox::Owner owner) {
  if (page != nullptr && page->server_has_other_pids()) {
    if (uses_page(options)) {
      // No room on the page: unwatched, since a worker never fails for its watchdog.
      page->note_unwatched();
      return {};
    }
    throw TimerError(fmt::format(
        "'{}' is a scope of another process, and this client's server is in another pid "
        "namespace: it would take pid {} for somebody else's",
        printable(scope), options.pid));
  }
  Keeper& keeper = Keeper::instance();
  TimerRequest request;
  const pid_t self = ::getpid();
  request.pid = options.pid == 0 ? self : options.pid;
  // The thread tells whose stack is of interest; another process' scope is no thread of ours.
  request.tid = request.pid == self ? ::gettid() : 0;
  request.scope = std::move(scope);
  request.whole_process = options.whole_process;
  request.spare_if_left = options.spare_if_left;
  // Of one process two clients speak then: itself, and we who watch it from outside.
  auto id = keeper.ids().open(request.pid,
                              options.whole_process ? request.scope + "#process" : request.scope);
  if (!id) {
    throw_limit(request.pid, request.scope);
  }
  request.timer_id = std::move(*id);
  request.timeout = after;
  request.signal = options.signal;
  request.grace = options.grace.value_or(Duration{-1});
  request.warn_after = options.warn_after.value_or(Duration{0});
  const TimerId timer(nullptr, keeper.next_number(), keeper.fork_count());
  outbox.acquire(timer.number_, std::move(request), Instant::now() + after, owner);
  keeper.deliver(outbox);
  return timer;
}

bool TimerClient::State::renew(TimerId timer, Duration after, bool& wake) {
  if (timer.slot_ != nullptr) {
    return is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
           renew_scope(*timer.slot_, timer.number_, after.count(), true, wake);
  }
  if (!is_ours(timer) || !outbox.renew(timer.number_, after, Instant::now() + after)) {
    return false;
  }
  Keeper::instance().deliver(outbox);
  return true;
}

bool TimerClient::State::release(TimerId timer) noexcept {
  if (timer.slot_ != nullptr) {
    return is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
           release_scope(*timer.slot_, timer.number_, true);
  }
  if (!is_ours(timer)) {
    return false;
  }
  const Outbox::Released released = outbox.release(timer.number_, Instant::now());
  if (released != Outbox::Released::kNotOpen) {
    Keeper::instance().deliver(outbox);
  }
  return released == Outbox::Released::kInTime;
}

bool TimerClient::State::set_paused(State* state, TimerId timer, bool is_paused) {
  bool wake = false;
  bool is_open = false;
  {
    const auto held = Keeper::instance().lock();
    if (timer.slot_ != nullptr) {
      const auto change = is_paused ? pause_scope : resume_scope;
      is_open = is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
                change(*timer.slot_, slot_flag::kPausedByCaller, wake);
    } else if (state != nullptr && is_ours(timer)) {
      const auto change = is_paused ? &Outbox::pause : &Outbox::resume;
      is_open = (state->outbox.*change)(timer.number_, Outbox::Pauser::kCaller, Instant::now());
      Keeper::instance().deliver(state->outbox);
    }
  }
  if (wake) {
    timer.slot_->page->wake();
  }
  return is_open;
}

Duration TimerClient::State::timeout_for(std::string_view shown, Duration after,
                                         const ScopeOptions& options) {
  if (!options.first_timeout) {
    return after;
  }
  if (begun_in != Keeper::instance().fork_count()) {
    begun.clear();
    begun_in = Keeper::instance().fork_count();
  }
  return begun.emplace(shown).second ? *options.first_timeout : after;
}

std::optional<TimerTimes> TimerClient::State::times(TimerId timer) const {
  if (timer.slot_ != nullptr) {
    return is_open_here(*timer.slot_, timer.number_, timer.fork_count_)
               ? std::optional(times_of(*timer.slot_))
               : std::nullopt;
  }
  const auto times = is_ours(timer) ? outbox.times(timer.number_) : std::nullopt;
  if (!times) {
    return std::nullopt;
  }
  const Instant now = Instant::now();
  const Duration remaining = times->deadline.is_never() ? kNoDeadline : times->deadline - now;
  return TimerTimes{now - times->acquired, times->left.value_or(remaining), times->left.has_value(),
                    !times->left && remaining <= Duration::zero()};
}

}  // namespace filetimer
