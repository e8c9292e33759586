// A span of time as users write it.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <type_traits>

namespace filetimer {

// A timeout that every std::chrono::duration converts to, so 30s, 1.5s and 500ms can be passed as
// they are. A number without a unit does not convert.
//
//   client.expires(1.5s, "forward");
//   client.expires(std::chrono::hours::max(), "upload");  // no deadline
//
// No deadline is X::max() of any duration X, infinity, and any time over nanoseconds::max().
// Fractions of a nanosecond are rounded up. NaN becomes the smallest value, which no function
// accepts. A function that takes a Timeout states which values it accepts, and throws
// InvalidArgument for all others.
class Timeout {
 public:
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> time)  // NOLINT: implicit, to be written 30s
      : time_(saturated(time)) {}

  // Returns the time in nanoseconds; nanoseconds::max() for none.
  [[nodiscard]] constexpr std::chrono::nanoseconds value() const { return time_; }
  [[nodiscard]] constexpr bool is_none() const { return time_ == std::chrono::nanoseconds::max(); }

  friend constexpr auto operator<=>(Timeout, Timeout) = default;

 private:
  using Nanoseconds = std::chrono::nanoseconds;

  template <class Rep, class Period>
  static constexpr Nanoseconds saturated(std::chrono::duration<Rep, Period> time) {
    if constexpr (std::is_same_v<decltype(time), Nanoseconds>) {
      return time;
    } else {
      if (time == decltype(time)::max()) {
        return Nanoseconds::max();
      }
      // In long double, whose range no duration of this century leaves.
      const auto exact = std::chrono::duration<long double, std::nano>(time);
      if (exact.count() >= static_cast<long double>(Nanoseconds::max().count())) {
        return Nanoseconds::max();
      }
      if (!(exact.count() > static_cast<long double>(Nanoseconds::min().count()))) {
        return Nanoseconds::min();  // NaN, too
      }
      if constexpr (std::chrono::treat_as_floating_point_v<Rep>) {
        return std::chrono::ceil<Nanoseconds>(exact);
      } else {
        return std::chrono::ceil<Nanoseconds>(time);
      }
    }
  }

  Nanoseconds time_;
};

}  // namespace filetimer
