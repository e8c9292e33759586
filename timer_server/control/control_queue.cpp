// SPDX-License-Identifier: MIT
#include "timer_server/control/control_queue.hpp"

#include <utility>

namespace filetimer {

ControlQueue::Place ControlQueue::add(std::string_view line, Instant now) {
  if (waiting_.empty() && has_time(now)) {
    return Place::kNow;
  }
  if (waiting_.size() >= kMostWaiting) {
    return Place::kFull;
  }
  waiting_.emplace_back(line);
  return Place::kLater;
}

std::optional<std::string> ControlQueue::take(Instant now) {
  if (waiting_.empty() || !has_time(now)) {
    return std::nullopt;
  }
  std::string line = std::move(waiting_.front());
  waiting_.pop_front();
  return line;
}

// Counts a request of this iteration and returns true, or returns false if there is no time for it.
bool ControlQueue::has_time(Instant now) {
  if (taken_ == 0) {
    begun_ = now;
  }
  if (taken_ >= kMostAtOnce || now - begun_ >= kLongestAtOnce) {
    return false;
  }
  ++taken_;
  return true;
}

}  // namespace filetimer
