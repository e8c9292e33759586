// SPDX-License-Identifier: MIT
#include "timer_client/src/unix_deadline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace filetimer {

double unix_time_of(Instant deadline) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (deadline.is_never()) {
    return kInfinity;
  }
  // The monotonic clock first, and rounded up: what passes between the reads and what a double
  // can't hold make the deadline later, never earlier.
  const Duration left = deadline - Instant::now();
  const double seconds = static_cast<double>(ClockReading::now().wall_ns + left.count()) / 1e9;
  return std::max(0.0, std::nextafter(seconds, kInfinity));
}

}  // namespace filetimer
