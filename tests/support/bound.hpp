// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <thread>

namespace filetimer::testing {

// The bound of every wait of a test: longer than any of them takes on a busy machine, and well
// below CTest's limit. A test that reaches it fails.
inline constexpr std::chrono::milliseconds kBound = std::chrono::seconds{20};

// Polls every 2 ms for a condition that no descriptor announces. Returns false after the bound.
inline bool wait_until(const std::function<bool()>& holds,
                       std::chrono::milliseconds bound = kBound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

// Calls the function with `time`, twice that time and so on until it returns true. For what a test
// does before a deadline: on a busy machine it may take longer than a short time. A call that comes
// too late returns false and checks nothing.
inline void until_in_time(std::chrono::milliseconds time,
                          const std::function<bool(std::chrono::milliseconds)>& comes_in_time) {
  for (; !comes_in_time(time); time *= 2) {
    REQUIRE(time < kBound);
  }
}

}  // namespace filetimer::testing
