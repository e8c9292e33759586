// SPDX-License-Identifier: MIT
#include "common/numbers.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using filetimer::number_from;
using filetimer::take_number;

TEST_CASE("a text is a number only as a whole") {
  CHECK(number_from<int>("42") == 42);
  CHECK(number_from<std::uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(number_from<double>("0.5") == 0.5);
  CHECK(number_from<int>("ff", 16) == 255);
  for (const char* text : {"", "-", "x", "4x", "4 ", " 4", "4\n", "0x4", "4.0", "2147483648"}) {
    CAPTURE(text);
    CHECK_FALSE(number_from<int>(text));
  }
}

TEST_CASE("a sign is a minus sign, of a type that has one") {
  CHECK(number_from<int>("-4") == -4);
  CHECK_FALSE(number_from<int>("+4"));
  CHECK_FALSE(number_from<int>("--4"));
  CHECK_FALSE(number_from<unsigned>("-4"));
  CHECK_FALSE(number_from<unsigned>("-0"));
}

TEST_CASE("a number is taken from the front of a text, and other text is left there") {
  std::string_view text = "12 34K";
  CHECK(take_number<int>(text) == 12);
  CHECK(text == " 34K");
  CHECK_FALSE(take_number<int>(text));
  CHECK(text == " 34K");
  text.remove_prefix(1);
  CHECK(take_number<std::uint8_t>(text) == 34);
  CHECK(text == "K");
  text = "300";
  CHECK_FALSE(take_number<std::uint8_t>(text));
  CHECK(text == "300");
}
