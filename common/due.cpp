// SPDX-License-Identifier: MIT
#include "common/due.hpp"

#include <signal.h>

#include <cmath>

#include "common/limits.hpp"

namespace filetimer {

// The clamps serve words that a worker makes up.
Instant last_change_of(const Slot& slot, std::int64_t word) {
  if (slot_word::is_paused(word)) {
    return {word - slot_word::kPaused};
  }
  const Instant started = start_in(slot.started);
  const bool is_resumed = (slot.flags.load(kRelaxed) & slot_flag::kResumed) != 0;
  if (!is_resumed || !slot_word::is_open(word)) {
    return started;
  }
  return std::max(started, {word - std::clamp<std::int64_t>(slot.left.load(kRelaxed), 0, word)});
}

Duration LostTime::add(Instant from, Instant until) {
  Duration known{};
  while (!times_.empty() && times_.back().until > from) {
    from = std::min(from, times_.back().from);
    known += times_.back().length;
    times_.pop_back();
  }
  if (times_.size() == kMaxTimes) {
    // A scope that began in a merged time gets its whole length. If always the two oldest were
    // merged, they would soon have what was lost in months, and every long scope would get that.
    std::size_t merged = 1;
    double least = HUGE_VAL;
    for (std::size_t i = 1; i < kMaxTimes; ++i) {
      const double span = in_seconds(times_[i].until - times_[i - 1].from);
      const double age = in_seconds(until - times_[i].until);
      if (span < least * age) {
        least = span / age;
        merged = i;
      }
    }
    times_[merged].from = times_[merged - 1].from;
    times_[merged].length += times_[merged - 1].length;
    times_.erase(times_.begin() + static_cast<std::ptrdiff_t>(merged) - 1);
  }
  times_.push_back({from, until, until - from});
  return until - from - known;
}

Instant LostTime::extended(Instant due, const ScopeSpan& span, Duration most, Instant until) const {
  auto time = std::ranges::upper_bound(times_, span.started, {}, &Time::until);
  for (; time != times_.end() && time->from < until && most > Duration::zero(); ++time) {
    const Instant end = std::min(time->until, until);
    const Duration lost = std::min(time->length - (time->until - end), end - span.started);
    const Duration given = std::clamp(lost, Duration::zero(), std::min(span.timeout, most));
    due = std::max(due, end) + given;
    most -= most == kForever ? Duration::zero() : given;
  }
  return due;
}

Instant due_after_losses(Instant due, const ScopeSpan& span, const LostTime& server,
                         const LostTime& worker, Instant until) {
  const bool is_long = span.timeout > kForever / kMostTimeoutsGiven;
  const Duration most = is_long ? kForever : kMostTimeoutsGiven * span.timeout;
  return worker.extended(server.extended(due, span, most, until), span, kForever, until);
}

Duration grace_before_due(bool has_flag, int signal, Duration grace) {
  return has_flag && signal > 0 && signal != SIGKILL ? grace : Duration::zero();
}

Duration grace_before_due(const Slot& slot, Duration servers_grace) {
  const std::uint32_t grace_ms = slot.grace_ms.load(kRelaxed);
  return grace_before_due((slot.flags.load(kRelaxed) & slot_flag::kSignalFirst) != 0,
                          slot.signal.load(kRelaxed),
                          grace_ms == kServersGrace ? servers_grace
                          : grace_ms == kNoSigkill  ? Duration::zero()
                                                   : Duration{std::chrono::milliseconds{grace_ms}});
}

Instant due_after_losses(const Slot& slot, std::int64_t word, const ScopeSpan& span,
                         Duration max_timeout, const LostTime& server, const LostTime& worker) {
  const Duration carried = slot_word::is_paused(word) ? Duration::zero() : span.carried;
  return due_after_losses(due_time(slot, word, max_timeout) + carried, span, server, worker);
}

// A pause moves Slot::started, past the times that were lost before it, and Slot::left is without
// what the scope gets for them. So at the first look at a pause it is noted what the scope gets
// more than Slot::left, and after the pause only the times since count. A pause between two looks
// began, if the deadline had passed, at the earlier one. Only a renewal makes more time left.
ScopeSpan ScopeLosses::look(const Slot& slot, std::int64_t word, Duration max_timeout,
                            const LostTime& server, const LostTime& worker, Instant now) {
  constexpr std::int64_t kMost = kMaxTimeout.count() + 1;
  const Instant acquired = start_in(slot.acquired);
  const bool is_known = acquired_ == acquired;
  if (is_known && word_ == word) {
    seen_ = now;
    return span_;
  }
  const bool is_paused = slot_word::is_paused(word);
  const bool is_resumed = (slot.flags.load(kRelaxed) & slot_flag::kResumed) != 0;
  const Duration timeout = timeout_of(slot, word, max_timeout);
  const Duration asked{std::clamp<std::int64_t>(slot.timeout.load(kRelaxed), 0, kMost)};
  const Duration until_due = std::clamp(Instant{word} - now, Duration{1}, Duration{kMost});
  const Duration left = is_paused || is_resumed
                            ? Duration{std::clamp<std::int64_t>(slot.left.load(kRelaxed), 1, kMost)}
                            : until_due;
  if (!is_known) {
    *this = {};
  }
  if (!is_paused && (!is_resumed || !is_known)) {
    span_ = span_of(start_in(slot.started), word, timeout);
  } else {
    const Instant changed = last_change_of(slot, word);  // the pause, or its end
    if (is_known && (left > left_ || asked != asked_)) {
      span_.carried = {};  // the scope was renewed
    } else if (slot_word::is_paused(word_)) {
      // It has run since that look if less is left, and gets what was lost meanwhile of that time.
      const Instant due = changed + left;
      const ScopeSpan since{seen_, asked};
      span_.carried +=
          std::min(left_ - left, due_after_losses(due, since, server, worker, changed) - due);
    } else {
      const bool was_due = left == Duration{1};
      const Instant due = is_known ? Instant{word_} : was_due ? acquired + asked : changed + left;
      const Instant paused = is_paused ? changed : was_due ? std::max(due, seen_) : due + -left;
      const ScopeSpan before = is_known ? span_ : ScopeSpan{acquired, asked};
      const Instant later = due_after_losses(due + before.carried, before, server, worker, paused);
      const bool is_endless = left.count() == kMost || due.ns >= slot_word::kNoDeadline;
      span_.carried =
          is_endless ? Duration::zero() : std::max(later - paused - left, Duration::zero());
    }
    span_.started = changed;
    span_.timeout = timeout;
  }
  acquired_ = acquired;
  word_ = word;
  seen_ = now;
  left_ = is_paused ? left : until_due;
  asked_ = asked;
  return span_;
}

Looks looks_for(Duration shortest) {
  if (shortest == kForever) {
    return {};
  }
  const Duration tolerated =
      std::clamp(shortest / 16, Looks::kLeastTolerated, Looks::kMostTolerated);
  return {std::max(shortest / 4 - tolerated, Looks::kLeastPause), tolerated};
}

Instant wakes_before(Instant now, Instant next, Duration tolerated) {
  constexpr std::int64_t kFarthest = kMaxTimeout.count();
  const std::int64_t wait = std::clamp<std::int64_t>(next.ns - now.ns, 0, kFarthest);
  return next.is_never() ? next : now + 4 * (Duration{wait} + tolerated);
}

Instant soft_time_of(const Slot& slot, std::int64_t word, Instant due, std::uint32_t warn_at) {
  if (slot_word::is_paused(word)) {
    return Instant::never();
  }
  const Instant soft = soft_time(start_in(slot.started), due, slot.soft_ms.load(kRelaxed), warn_at);
  return soft > last_change_of(slot, word) ? soft : Instant::never();
}

}  // namespace filetimer
