// SPDX-License-Identifier: MIT
#include "timer_server/questions/question_queue.hpp"

#include <utility>

namespace filetimer {

QuestionQueue::Place QuestionQueue::add(std::string_view line, Instant now) {
  if (waiting_.empty() && has_time(now)) {
    return Place::kNow;
  }
  if (waiting_.size() >= kMostWaiting) {
    return Place::kFull;
  }
  waiting_.emplace_back(line);
  return Place::kLater;
}

std::optional<std::string> QuestionQueue::take(Instant now) {
  if (waiting_.empty() || !has_time(now)) {
    return std::nullopt;
  }
  std::string line = std::move(waiting_.front());
  waiting_.pop_front();
  return line;
}

// Counts a request of this iteration and returns true, or returns false if there is no time for it.
bool QuestionQueue::has_time(Instant now) {
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
