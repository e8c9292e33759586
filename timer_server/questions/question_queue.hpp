// The control requests that are answered in one iteration of the loop, and those that wait.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"

namespace filetimer {

// An answer takes longer than a timer's line, and deadlines wait meanwhile: what is beyond the
// share of one iteration is kept as text for the next. Used on the loop thread.
class QuestionQueue {
 public:
  static constexpr std::size_t kMostAtOnce = 64;  // in one iteration
  static constexpr Duration kLongestAtOnce = std::chrono::milliseconds{5};
  static constexpr std::size_t kMostWaiting = 4096;

  void begin_iteration() { taken_ = 0; }

  enum class Place { kNow, kLater, kFull };
  // Returns kNow when the question `line` is to be answered at once. Keeps a copy where it returns
  // kLater, and nothing where too many wait already.
  Place add(std::string_view line, Instant now);
  // Returns the next line that waits, if this iteration has time for it.
  std::optional<std::string> take(Instant now);

  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  bool has_time(Instant now);

  std::size_t taken_ = 0;  // in this iteration
  Instant begun_;          // when the first of them was taken
  std::deque<std::string> waiting_;
};

}  // namespace filetimer
