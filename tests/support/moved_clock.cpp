// SPDX-License-Identifier: MIT
#include "tests/support/moved_clock.hpp"

#include <pthread.h>
#include <time.h>

#include <atomic>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
std::atomic<std::int64_t> moved_by{0};

void add(timespec& time, std::int64_t ns) {
  const std::int64_t sum = time.tv_sec * kSecond + time.tv_nsec + ns;
  time = {sum / kSecond, sum % kSecond};
}

}  // namespace

void filetimer::testing::move_clock(Duration time) {
  moved_by += time.count();
}

extern "C" {

int __real_clock_gettime(clockid_t clock, timespec* time);
int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  const int result = __real_clock_gettime(clock, time);
  if (clock == CLOCK_MONOTONIC) {
    add(*time, moved_by);
  }
  return result;
}

int __real_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until);
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  timespec when = *until;
  if (clock == CLOCK_MONOTONIC) {
    add(when, -moved_by);
  }
  return __real_pthread_cond_clockwait(condition, mutex, clock, &when);
}

}  // extern "C"
