// The public headers include only the standard library: this file includes them first and alone,
// and checks for macros of headers that they must not include. And the values of Timeout.
// SPDX-License-Identifier: MIT
#include <filetimer/admin.hpp>
#include <filetimer/timer_client.hpp>

#if defined(FMT_VERSION) || defined(BOOST_VERSION) || defined(BOOST_CONFIG_HPP) || \
    defined(SIMDJSON_H) || defined(SIMDJSON_VERSION) || defined(TL_EXPECTED_HPP)
#error "the public header brings in a library that its users should not need"
#endif

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <type_traits>

using namespace std::chrono_literals;
using filetimer::Timeout;
using std::chrono::nanoseconds;

static_assert(!std::is_convertible_v<int, Timeout>);
static_assert(!std::is_convertible_v<double, Timeout>);
static_assert(!std::is_constructible_v<Timeout, double>);
static_assert(std::is_nothrow_move_constructible_v<filetimer::TimerClient>);
static_assert(std::is_nothrow_move_assignable_v<filetimer::TimerClient>);
static_assert(!std::is_copy_constructible_v<filetimer::TimerClient>);
static_assert(std::is_nothrow_move_constructible_v<filetimer::TimerScope>);
static_assert(std::is_nothrow_move_assignable_v<filetimer::TimerScope>);
static_assert(!std::is_copy_constructible_v<filetimer::TimerScope>);

TEST_CASE("every duration is a timeout, rounded up to a nanosecond") {
  CHECK(Timeout(1.5s).value() == 1'500'000'000ns);
  CHECK(Timeout(500ms).value() == 500'000'000ns);
  CHECK(Timeout(30s).value() == 30s);
  CHECK(Timeout(0.1ns).value() == 1ns);
  CHECK(Timeout(std::chrono::duration<int, std::ratio<60>>(2)).value() == 2min);
  CHECK(Timeout(std::chrono::duration<long long, std::pico>(1)).value() == 1ns);
  CHECK(Timeout(0s).value() == 0ns);
  CHECK(Timeout(-3s).value() == -3s);
  CHECK(Timeout(std::chrono::seconds{1'000'000'000}).value() == 1'000'000'000s);
}

TEST_CASE("the longest value of every duration type means no deadline, NaN is the smallest one") {
  CHECK(Timeout(nanoseconds::max()).is_none());
  CHECK(Timeout(std::chrono::seconds::max()).is_none());
  CHECK(Timeout(std::chrono::hours::max()).is_none());
  CHECK(Timeout(std::chrono::years::max()).is_none());
  CHECK(Timeout(std::chrono::duration<double>::max()).is_none());
  CHECK(Timeout(std::chrono::duration<float>(std::numeric_limits<float>::infinity())).is_none());
  CHECK(Timeout(std::chrono::hours(3'000'000)).is_none());  // 342 years
  CHECK_FALSE(Timeout(std::chrono::hours(2'000'000)).is_none());
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(Timeout(std::chrono::duration<double>(kNan)).value() == nanoseconds::min());
  CHECK(Timeout(std::chrono::hours::min()).value() == nanoseconds::min());
  CHECK(Timeout(std::chrono::duration<double>(-1e300)).value() == nanoseconds::min());
}
