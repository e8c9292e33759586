// SPDX-License-Identifier: MIT
#include "timer_server/scopes/given_time.hpp"

#include <algorithm>

namespace filetimer {

void GivenTime::add(Instant until, Duration length) {
  if (gaps_.size() == kMaxGaps) {
    gaps_[1].length = std::max(gaps_[0].length, gaps_[1].length);
    gaps_.erase(gaps_.begin());
  }
  gaps_.push_back({until, length});
}

Instant GivenTime::deadline(const Span& span, Instant resumed) const {
  Instant due = span.deadline;
  if (due.is_never()) {
    return due;
  }
  Instant started = span.started;
  if (started < resumed && span.timeout != kForever) {
    due = std::max(due, resumed + span.timeout);
    started = resumed;
  }
  const auto first = std::ranges::upper_bound(gaps_, started, {}, &Gap::until);
  if (first != gaps_.end()) {
    due = std::max(due, first->until) + std::min(first->length, span.timeout);
  }
  return due;
}

}  // namespace filetimer
