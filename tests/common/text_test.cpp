// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/limits.hpp"

using namespace filetimer;

TEST_CASE("a prefix is cut between characters") {
  const std::string text = "aé世🙂";  // 1 + 2 + 3 + 4 bytes
  const std::size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (std::size_t max = 0; max < 12; ++max) {
    CAPTURE(max);
    CHECK(utf8_prefix(text, max).size() == expected[max]);
    CHECK(valid_utf8(utf8_prefix(text, max)) == utf8_prefix(text, max));
  }
  for (const std::size_t max : {0U, 1U, 2U, 3U}) {
    CHECK(utf8_prefix("🙂", max).empty());  // without a character before it
  }
  CHECK(utf8_prefix(std::string(20, '\x80'), 10).size() == 10);  // not UTF-8: as long as allowed
  CHECK(utf8_prefix("", 5).empty());
  CHECK(utf8_prefix("abc", 3) == "abc");
}

TEST_CASE("UTF-8 is not changed, and of other text the bytes that are not UTF-8 become hex") {
  for (const char* text :
       {"", "plain", "tab\tand\nnewline", "Grüße 世界 🙂", "\x7f", "\xc2\x85", "a\u202eb"}) {
    CAPTURE(text);
    CHECK(valid_utf8(text) == text);
  }
  CHECK(valid_utf8(std::string_view("\0x", 2)) == std::string_view("\0x", 2));
  CHECK(valid_utf8("a\x80z") == "a\\x80z");
  CHECK(valid_utf8("\xe4\xb8") == "\\xe4\\xb8");                    // cut short
  CHECK(valid_utf8("\xe4\xb8z") == "\\xe4\\xb8z");                  // broken off
  CHECK(valid_utf8("\xf0\x8f\xbf\xbf") == "\\xf0\\x8f\\xbf\\xbf");  // overlong
}

namespace {

// Returns the length of the first character by another judge of UTF-8; 0: malformed.
std::size_t length_by_simdjson(std::string_view text) {
  for (std::size_t length = 1; length <= text.size(); ++length) {
    if (simdjson::validate_utf8(text.data(), length)) {
      return length;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("what is a character is what another judge of UTF-8 says") {
  const std::vector<int> ends{-1,   0x00, 0x7F, 0x80, 0x8F, 0x90,
                              0x9F, 0xA0, 0xBF, 0xC0, 0xFF};  // -1: none
  std::size_t wrong = 0;
  for (int first = 0; first < 256; ++first) {
    for (const int second : ends) {
      for (const int third : ends) {
        for (const int fourth : ends) {
          std::string text;
          for (const int byte : {first, second, third, fourth}) {
            text += byte < 0 ? std::string() : std::string(1, static_cast<char>(byte));
          }
          const std::size_t length = length_by_simdjson(text);
          // The first byte becomes hex, or the first character stays.
          const std::string made = valid_utf8(text);
          const std::string kept = length == 0 ? "\\x" : text.substr(0, length);
          wrong += made.starts_with(kept) ? 0U : 1U;
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("printable text cannot move a terminal's cursor, or hide or reorder what is shown") {
  CHECK(printable("a\nb\tc") == "a\\nb\\tc");
  CHECK(printable("\x1b[2J\r\x7f") == "\\x1b[2J\\x0d\\x7f");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\x9b31m");  // CSI as one C1 character
  CHECK(printable("\xc2\xa0é\xff") == "\xc2\xa0é\\xff");
  CHECK(printable("a\u202eb\u2066c\u2069d\u200be\u061cf\ufeff") ==
        "a\\u202eb\\u2066c\\u2069d\\u200be\\u061cf\\ufeff");
  CHECK(printable("\u2028\u200f\U0001bca3\U0001d173\U000e007f") ==
        "\\u2028\\u200f\\U0001bca3\\U0001d173\\U000e007f");
  CHECK(printable("\u00ad\u115f\u1160\u17b4\u17b5\u180e\u2060\u206f\u3164\uffa0\ufff9\ufffb") ==
        "\\u00ad\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u2060\\u206f\\u3164\\uffa0\\ufff9\\ufffb");
  CHECK(printable("größe → 世界 é 🙂") == "größe → 世界 é 🙂");
}

TEST_CASE("scope names over the limit are cut between characters, and two stay two") {
  for (const std::string& name :
       {std::string(), std::string("forward"), std::string(kMaxScopeNameBytes, 'x')}) {
    CHECK(bounded_scope_name(name) == name);
  }
  const std::string common(1000, 'x');
  const std::string one = bounded_scope_name(common + "1");
  const std::string two = bounded_scope_name(common + "2");
  CHECK(one != two);
  CHECK(one.size() == kMaxScopeNameBytes);
  CHECK(one.starts_with("xxxxxxxxxx"));
  CHECK(one == bounded_scope_name(common + "1"));
  // The mark is the same on every host and in every build.
  CHECK(bounded_scope_name(std::string(kMaxScopeNameBytes + 1, 'a')) ==
        std::string(235, 'a') + "...~fd2916200943d825");
  for (int lead = 0; lead < 4; ++lead) {
    std::string name(static_cast<std::size_t>(lead), 'x');
    for (int i = 0; i < 200; ++i) {
      name += "🙂";
    }
    const std::string bounded = bounded_scope_name(name);
    CHECK(bounded.size() <= kMaxScopeNameBytes);
    CHECK(valid_utf8(bounded) == bounded);
  }
}

TEST_CASE("a text is a number only as a whole, with a minus sign at most if its type has one") {
  CHECK(number_from<int>("42") == 42);
  CHECK(number_from<std::uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(number_from<double>("0.5") == 0.5);
  CHECK(number_from<int>("ff", 16) == 255);
  for (const char* text : {"", "-", "x", "4x", "4 ", " 4", "4\n", "0x4", "4.0", "2147483648"}) {
    CAPTURE(text);
    CHECK_FALSE(number_from<int>(text));
  }
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
