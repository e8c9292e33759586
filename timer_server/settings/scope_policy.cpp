// SPDX-License-Identifier: MIT
#include "timer_server/settings/scope_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/due.hpp"
#include "common/duration_text.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

ScopePolicy::ScopePolicy(const Settings& settings, const LostTime& lost)
    : settings_(settings),
      lost_(lost),
      page_terms_{.max_timeout = settings.max_timeout.value_or(kForever),
                  .warn_at = settings.warn_at ? warn_at_word(*settings.warn_at) : 0,
                  .grace = grace_ == kForever ? Duration::zero() : grace_} {}

SlotReading ScopePolicy::terms_of(const wire::Request& request, const ClockReading& now) const {
  SlotReading terms;
  terms.acquired = now.mono;
  terms.deadline = monotonic_from_unix(request.expiration_time, now);
  terms.signal = request.signal;
  terms.tid = request.x_tid.value_or(0);
  terms.flags =
      static_cast<std::uint16_t>((request.x_whole_process ? slot_flag::kWholeProcess : 0) |
                                 (request.x_signal_first ? slot_flag::kSignalFirst : 0));
  if (request.x_timeout_s) {
    terms.asked = duration_from_seconds(*request.x_timeout_s);
    if (terms.asked != kForever && !terms.deadline.is_never()) {
      // The client opened the scope before the server read the line, perhaps by a wall clock that
      // was set back since.
      terms.deadline = std::min(terms.deadline, now.mono + terms.asked);
      terms.acquired = Instant{terms.deadline.ns - terms.asked.count()};
    }
  } else if (!terms.deadline.is_never()) {
    terms.asked = std::max(terms.deadline - now.mono, Duration::zero());
  }
  terms.timeout = terms.asked;
  Duration grace = kForever;
  if (request.x_grace_s && !std::isnan(*request.x_grace_s)) {
    grace = *request.x_grace_s < 0 ? kForever : duration_from_seconds(*request.x_grace_s);
  } else if (settings_.grace || request.is_from_own_client()) {
    grace = grace_;
  }
  terms.grace_ms = grace_ms_of(grace);
  if (request.x_soft_s && *request.x_soft_s > 0) {
    const Duration soft = duration_from_seconds(*request.x_soft_s);
    terms.soft_ms = soft <= kLongestSoft ? soft_ms(soft) : 0;
  }
  return terms;
}

SlotReading ScopePolicy::view_of(SlotReading reading) const {
  const bool is_endless = reading.deadline.is_never();  // without --max-timeout, as in a pause
  if (!reading.has(slot_flag::kIdle)) {
    reading.deadline = due_time(reading, page_terms_.max_timeout);
  }
  if (!reading.deadline.is_never()) {
    reading.timeout = is_endless ? page_terms_.max_timeout
                                 : std::max(reading.deadline - reading.started, Duration::zero());
  }
  reading.grace_ms = reading.grace_ms.value_or(grace_ms_of(grace_));
  return reading;
}

SlotReading ScopePolicy::view_of(SlotReading reading, const Worker& worker) const {
  const ScopeSpan span = span_of(reading.started, reading.word,
                                 timeout_of(reading.asked, reading.word, page_terms_.max_timeout));
  SlotReading view = view_of(std::move(reading));
  view.deadline = due_after_losses(view.deadline, span, lost_, worker.lost);
  return view;
}

std::vector<SlotReading> ScopePolicy::open_scopes_of(const Worker& worker, std::size_t most,
                                                     std::size_t* count) const {
  std::vector<SlotReading> views;
  std::size_t all = 0;
  for (const auto& page : worker.pages) {
    std::size_t on_page = 0;
    for (SlotReading& reading : page->open_slots(most, &on_page)) {
      views.push_back(view_of(std::move(reading), worker));
    }
    all += on_page;
  }
  if (count != nullptr) {
    *count = all;
  }
  // Scopes are most often read in the order in which they were opened.
  if (!std::ranges::is_sorted(views, {}, &SlotReading::acquired)) {
    std::ranges::stable_sort(views, {}, &SlotReading::acquired);
  }
  if (views.size() > most) {
    views.erase(views.begin(), views.end() - static_cast<std::ptrdiff_t>(most));
  }
  return views;
}

std::string ScopePolicy::reason_to_warn(const SlotReading& terms, bool is_signalled) const {
  return is_signalled ? "its timeout has passed"
         : terms.soft_ms != 0
             ? fmt::format("its soft deadline of {} has passed",
                           duration_text(std::chrono::milliseconds{terms.soft_ms}))
             : fmt::format("{} of its timeout has passed (--warn-at)", *settings_.warn_at);
}

}  // namespace filetimer
