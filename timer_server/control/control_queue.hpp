// Divides control requests among the iterations of the loop.
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

// Limits the control requests of one iteration, because deadlines wait while they are answered.
// Further requests are kept as text for the next iteration. Used on the loop thread.
class ControlQueue {
 public:
  static constexpr std::size_t kMostAtOnce = 64;  // requests in one iteration
  static constexpr Duration kLongestAtOnce = std::chrono::milliseconds{5};
  static constexpr std::size_t kMostWaiting = 4096;

  void begin_iteration() { taken_ = 0; }

  enum class Place { kNow, kLater, kFull };
  // Returns kNow if the request `line` is to be answered at once. Keeps a copy of it and returns
  // kLater if this iteration has no time for it. Returns kFull if too many requests wait.
  Place add(std::string_view line, Instant now);
  // Removes and returns the next request that waits, if this iteration has time for it.
  std::optional<std::string> take(Instant now);

  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  bool has_time(Instant now);

  std::size_t taken_ = 0;  // in this iteration
  Instant begun_;          // when the first request of this iteration was taken
  std::deque<std::string> waiting_;
};

}  // namespace filetimer
