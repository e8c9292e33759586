// The public headers include only the standard library. This file includes them first and alone,
// and checks for macros of headers that they must not include.
// SPDX-License-Identifier: MIT
#include <filetimer/admin.hpp>
#include <filetimer/timer_client.hpp>

#if defined(FMT_VERSION) || defined(BOOST_VERSION) || defined(BOOST_CONFIG_HPP) || \
    defined(SIMDJSON_H) || defined(SIMDJSON_VERSION) || defined(TL_EXPECTED_HPP)
#error "the public header brings in a library that its users should not need"
#endif

#include <doctest/doctest.h>

#include <type_traits>

TEST_CASE("the public types can be moved and not copied") {
  using filetimer::TimerClient;
  using filetimer::TimerScope;
  CHECK(std::is_nothrow_move_constructible_v<TimerClient>);
  CHECK(std::is_nothrow_move_assignable_v<TimerClient>);
  CHECK_FALSE(std::is_copy_constructible_v<TimerClient>);
  CHECK(std::is_nothrow_move_constructible_v<TimerScope>);
  CHECK(std::is_nothrow_move_assignable_v<TimerScope>);
  CHECK_FALSE(std::is_copy_constructible_v<TimerScope>);
}
