// For tests of two threads that run at the same time.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <sched.h>

#include <functional>
#include <thread>

namespace filetimer::testing {

inline std::size_t usable_processors() {
  cpu_set_t usable;
  return ::sched_getaffinity(0, sizeof usable, &usable) == 0
             ? static_cast<std::size_t>(CPU_COUNT(&usable))
             : 1;
}

// Binds the calling thread to one of the processors that it may use, the first for 0. Two threads
// on two processors run at the same time even if other processes use the processors.
inline void stay_on_processor(std::size_t number) {
  cpu_set_t usable;
  REQUIRE(::sched_getaffinity(0, sizeof usable, &usable) == 0);
  for (std::size_t i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &usable) && number-- == 0) {
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(i, &only);
      ::sched_setaffinity(0, sizeof only, &only);
    }
  }
}

// Runs both functions to their ends, each on its own processor.
inline void run_side_by_side(const std::function<void()>& worker,
                             const std::function<void()>& server) {
  std::thread first([&] {
    stay_on_processor(0);
    worker();
  });
  std::thread second([&] {
    stay_on_processor(1);
    server();
  });
  first.join();
  second.join();
}

}  // namespace filetimer::testing
