// SPDX-License-Identifier: MIT
#include "timer_client/client/client_state.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/client/messages.hpp"

namespace filetimer {

TimerClient::State::~State() {
  const auto held = ProcessLock::instance().lock();
  for (OwnPage* each = &first_page_; each != nullptr; each = each->successor()) {
    each->end_idle_timeout_of(this);
  }
}

SlotHandle* TimerClient::State::claim_with_lock(ScopeKey key) {
  const auto held = ProcessLock::instance().lock();
  if (!page().is_made()) {
    look_again();
  }
  SlotHandle* const handle = page().claim(key);
  if (handle == nullptr && page().is_made() && !has_said_limit.exchange(true)) {
    const std::string reason =
        page().has_all_slots()
            ? fmt::format("{} scopes are open in this process, which is the limit",
                          kMaxScopesPerWorker)
            : std::string("the scope page of this process cannot grow, as on a full disk");
    client_messages::notice("{}: '{}' is not watched, and neither are others beyond it", reason,
                            printable(shown_name(key)));
  }
  return handle;
}

void TimerClient::State::look_again() noexcept {
  page_.store(&ProcessPages::instance().look_again(page()), std::memory_order_relaxed);
}

void TimerClient::State::swap_job(TimerScope& scope) {
  const auto held = ProcessLock::instance().lock();
  std::swap(job_, scope);  // releases neither
}

void TimerClient::State::after_opening(TimerScope& scope, unsigned todo_next,
                                       const PageTerms& terms) {
  if ((todo_next & todo::kLook) != 0) {
    auto held = ProcessLock::instance().lock();
    look_again();
    held.unlock();
    if (scope.follow_page(Duration{terms.timeout}, terms.opening)) {
      return;
    }
  }
  if ((todo_next & todo::kWake) != 0) {
    scope.slot_->page->wake();
  }
}

bool TimerClient::State::note_first(const std::string& shown) {
  const auto held = ProcessLock::instance().lock();
  if (begun_in != ProcessLock::instance().fork_count()) {
    begun.clear();
    begun_in = ProcessLock::instance().fork_count();
  }
  // Beyond the limit every scope counts as the first of its name, so its deadline is later, never
  // earlier.
  return begun.size() < kMaxBegunNames ? begun.insert(shown).second : !begun.contains(shown);
}

}  // namespace filetimer
