// SPDX-License-Identifier: MIT
#include "timer_server/settings/scope_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/due.hpp"
#include "common/duration_text.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

namespace {

// Returns the grace period of scopes on pages that name none.
std::optional<Duration> default_grace(const Settings& settings) {
  return settings.grace ? *settings.grace : Settings::kDefaultGrace;
}

}  // namespace

ScopePolicy::ScopePolicy(const Settings& settings, const LostTime& lost)
    : settings_(settings),
      lost_(lost),
      page_terms_{.max_timeout = settings.max_timeout.value_or(kForever),
                  .warn_at = settings.warn_at ? warn_at_word(*settings.warn_at) : 0,
                  .grace = default_grace(settings).value_or(Duration::zero())} {}

WorkerPage::Scan ScopePolicy::scan_of(const Worker& worker, Instant now) const {
  return {.now = now, .terms = page_terms_, .server = lost_, .worker = worker.lost};
}

ScopeTerms ScopePolicy::terms_of(const wire::Request& request, const ClockReading& now) const {
  ScopeTerms terms;
  terms.acquired = now.mono;
  terms.deadline = monotonic_from_unix(request.expiration_time, now);
  terms.signal = request.signal;
  terms.tid = request.x_tid.value_or(0);
  terms.whole_process = request.x_whole_process;
  terms.signal_first = request.x_signal_first;
  if (request.x_timeout_s) {
    terms.timeout = duration_from_seconds(*request.x_timeout_s);
    if (terms.timeout != kForever && !terms.deadline.is_never()) {
      // The client opened the scope before the server read the line.
      terms.acquired = std::min(terms.acquired, Instant{terms.deadline.ns - terms.timeout.count()});
    }
  } else if (!terms.deadline.is_never()) {
    terms.timeout = std::max(terms.deadline - now.mono, Duration::zero());
  }
  if (request.x_grace_s && !std::isnan(*request.x_grace_s)) {
    const Duration grace = duration_from_seconds(*request.x_grace_s);
    if (*request.x_grace_s >= 0 && grace != kForever) {
      terms.grace = grace_of(grace);
    }
  } else if (settings_.grace) {
    terms.grace = grace_of(*settings_.grace);
  } else if (request.is_from_own_client()) {
    terms.grace = grace_of(Settings::kDefaultGrace);
  }
  if (request.x_soft_s && *request.x_soft_s > 0) {
    const Duration soft = duration_from_seconds(*request.x_soft_s);
    terms.soft_ms = soft <= kLongestSoft ? soft_ms(soft) : 0;
  }
  terms.asked = terms.timeout;
  return terms;
}

ScopeView ScopePolicy::view_of(const SlotReading& reading) const {
  ScopeView view;
  view.name = reading.name;
  ScopeTerms& terms = view.terms;
  terms.acquired = reading.acquired;
  terms.asked = reading.asked;
  terms.deadline = reading.deadline;
  terms.is_idle = reading.has(slot_flag::kIdle);
  if (settings_.max_timeout && !terms.is_idle) {
    terms.deadline = due_time(reading, *settings_.max_timeout);
  }
  if (!terms.deadline.is_never()) {
    terms.timeout = std::max(terms.deadline - reading.started, Duration::zero());
  }
  terms.code_timeout = reading.code_timeout;
  terms.soft_ms = reading.soft_ms;
  terms.signal = reading.signal;
  terms.tid = reading.tid;
  terms.is_paused = slot_word::is_paused(reading.word);
  terms.is_judged = !slot_word::is_open(reading.word);
  terms.whole_process = reading.has(slot_flag::kWholeProcess);
  terms.signal_first = reading.has(slot_flag::kSignalFirst);
  if (!reading.grace_ms) {
    terms.grace = grace_of(default_grace(settings_));
  } else if (*reading.grace_ms != kNoSigkill) {
    terms.grace = Grace{*reading.grace_ms};
  }
  return view;
}

ScopeView ScopePolicy::view_of(const SlotReading& reading, const Worker& worker) const {
  ScopeView view = view_of(reading);
  const ScopeSpan span = span_of(reading.started, reading.word,
                                 timeout_of(reading.asked, reading.word, page_terms_.max_timeout));
  view.terms.deadline = due_after_losses(view.terms.deadline, span, lost_, worker.lost);
  return view;
}

std::vector<ScopeView> ScopePolicy::open_scopes_of(const Worker& worker, std::size_t most,
                                                   std::size_t* count) const {
  std::vector<ScopeView> views;
  std::size_t all = 0;
  for (const auto& page : worker.pages) {
    std::size_t on_page = 0;
    for (const SlotReading& reading : page->open_slots(most, &on_page)) {
      views.push_back(view_of(reading, worker));
    }
    all += on_page;
  }
  if (count != nullptr) {
    *count = all;
  }
  // Scopes are most often read in the order in which they were opened.
  const auto by_age = [](const ScopeView& view) { return view.terms.acquired; };
  if (!std::ranges::is_sorted(views, {}, by_age)) {
    std::ranges::stable_sort(views, {}, by_age);
  }
  if (views.size() > most) {
    views.erase(views.begin(), views.end() - static_cast<std::ptrdiff_t>(most));
  }
  return views;
}

std::string ScopePolicy::reason_to_warn(const ScopeTerms& terms, bool is_signalled) const {
  return is_signalled ? "its timeout has passed"
         : terms.soft_ms != 0
             ? fmt::format("its soft deadline of {} has passed",
                           duration_text(std::chrono::milliseconds{terms.soft_ms}))
             : fmt::format("{} of its timeout has passed (--warn-at)", *settings_.warn_at);
}

}  // namespace filetimer
