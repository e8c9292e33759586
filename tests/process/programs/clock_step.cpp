// Preloaded into timer_server, steps its clocks while the files exist that these variables name:
//   CLOCK_STEP   CLOCK_REALTIME is ahead by the seconds in the file
//   TIME_STEP    this clock, CLOCK_MONOTONIC and CLOCK_BOOTTIME are ahead by the nanoseconds in
//                the file: time has passed for the server, and not for its workers
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace {

constexpr long kSecond = 1'000'000'000;

// By system calls only, because the C library may ask for the time anywhere.
long number_in(const char* variable) {
  const char* path = std::getenv(variable);
  const long fd = path == nullptr ? -1 : ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0);
  if (fd < 0) {
    return 0;
  }
  std::array<char, 32> text{};
  const long got = ::syscall(SYS_read, fd, text.data(), text.size() - 1);
  ::syscall(SYS_close, fd);
  return got > 0 ? std::strtol(text.data(), nullptr, 10) : 0;
}

// The result is at least one nanosecond: zero would disarm a timer.
timespec later(const timespec& time, long nanoseconds) {
  const long sum = std::max(time.tv_sec * kSecond + time.tv_nsec + nanoseconds, 1L);
  return {sum / kSecond, sum % kSecond};
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = ::syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) {
    time->tv_sec += number_in("CLOCK_STEP");
  }
  if (result == 0 &&
      (clock == CLOCK_REALTIME || clock == CLOCK_BOOTTIME || clock == CLOCK_MONOTONIC)) {
    *time = later(*time, number_in("TIME_STEP"));
  }
  return static_cast<int>(result);
}

// The kernel's clock shows less than the server's. A timer that a step passes does not fire: what
// wakes the server next finds it due.
extern "C" int timerfd_settime(int fd, int flags, const itimerspec* when,
                               itimerspec* old) noexcept {
  itimerspec shifted = *when;
  const bool is_set = when->it_value.tv_sec != 0 || when->it_value.tv_nsec != 0;
  if ((flags & TFD_TIMER_ABSTIME) != 0 && is_set) {
    shifted.it_value = later(when->it_value, -number_in("TIME_STEP"));
  }
  return static_cast<int>(::syscall(SYS_timerfd_settime, fd, flags, &shifted, old));
}
