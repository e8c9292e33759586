// SPDX-License-Identifier: MIT
#include "timer_client/client/client_state.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {

SlotHandle* TimerClient::State::claim_with_lock(ScopeKey key, bool has_lock) {
  std::unique_lock<std::mutex> held;
  if (!has_lock) {
    held = ProcessLock::instance().lock();
  }
  if (!page().is_made()) {
    look_again();
  }
  OwnPage::Refusal why{};
  SlotHandle* const handle = page().claim(key, why);
  if (handle == nullptr && why == OwnPage::Refusal::kLimit && !has_said_limit.exchange(true)) {
    client_messages::notice(
        "{} scopes are open in this process, which is the limit: '{}' is not watched, and neither "
        "are others beyond it",
        kMaxScopesPerWorker, printable(shown_name(key)));
  }
  return handle;
}

bool TimerClient::State::look_again() noexcept {
  OwnPage& before = page();
  OwnPage& now = ProcessPages::instance().look_again(before);
  page_.store(&now, std::memory_order_relaxed);
  return &now != &before;
}

TimerId TimerClient::State::acquire(std::string_view name, const PageTerms& terms,
                                    unsigned& todo_next) {
  if (page().is_look_due(monotonic_ns())) {
    look_again();
  }
  SlotHandle* const handle = claim(ScopeKey::of_name(name, has_statistics), true);
  if (handle == nullptr) {
    page().note_unwatched();
    return {};
  }
  const TimerId timer = timer_in(*handle);
  todo_next = open_scope(*handle, terms);
  return timer;
}

void TimerClient::State::after_opening(TimerScope& scope, unsigned todo_next, ScopeKey key,
                                       const PageTerms& terms) {
  if ((todo_next & todo::kLook) != 0) {
    bool has_moved = false;
    {
      const auto held = ProcessLock::instance().lock();
      has_moved = look_again();
    }
    if (has_moved) {
      scope.timer_.slot_->statistics = nullptr;  // it is counted on the new page
      scope.release();
      SlotHandle* const handle = claim(key, false);
      if (handle == nullptr) {
        return;
      }
      scope.timer_ = timer_in(*handle);
      todo_next = open_scope(*handle, terms);
    }
  }
  if ((todo_next & todo::kWake) != 0) {
    scope.timer_.slot_->page->wake();
  }
}

bool TimerClient::State::note_first(std::string_view shown) {
  if (begun_in != ProcessLock::instance().fork_count()) {
    begun.clear();
    begun_in = ProcessLock::instance().fork_count();
  }
  // Beyond the limit every scope counts as the first of its name, so its deadline is later, never
  // earlier.
  return begun.size() < kMaxBegunNames ? begun.emplace(shown).second
                                       : !begun.contains(std::string(shown));
}

PageTerms TimerClient::State::terms_for(std::string_view shown, Duration after,
                                        const ScopeOptions& options, std::uint64_t client) {
  const bool is_first = options.first_timeout && note_first(shown);
  PageTerms terms = terms_of(is_first ? options.first_timeout->value() : after, options, client);
  terms.opening = is_first ? Opening::kFirst : Opening::kScope;
  return terms;
}

ReleaseResult TimerClient::State::release(TimerId timer, bool has_lock) noexcept {
  return is_open(timer) ? release_scope(*timer.slot_, timer.number_, has_lock)
                        : ReleaseResult::kNotOpen;
}

}  // namespace filetimer
