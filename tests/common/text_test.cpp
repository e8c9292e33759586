// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <doctest/doctest.h>

#include <string>

using filetimer::printable;
using filetimer::utf8_length;
using filetimer::utf8_prefix;
using filetimer::valid_utf8;

TEST_CASE("a prefix is cut between characters") {
  const std::string text = "aé世🙂";  // 1 + 2 + 3 + 4 bytes
  const std::size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (std::size_t max = 0; max < 12; ++max) {
    CAPTURE(max);
    CHECK(utf8_prefix(text, max).size() == expected[max]);
    CHECK(valid_utf8(utf8_prefix(text, max)) == utf8_prefix(text, max));
  }
}

TEST_CASE("a prefix of bytes that are not UTF-8 is as long as allowed") {
  const std::string continuations(20, '\x80');
  CHECK(utf8_prefix(continuations, 10).size() == 10);
  CHECK(utf8_prefix("", 5).empty());
  CHECK(utf8_prefix("abc", 3) == "abc");
}

TEST_CASE("valid text is not changed") {
  for (const char* text :
       {"", "plain", "tab\tand\nnewline", "Grüße 世界 🙂", "\x7f", "\xc2\x85"}) {
    CAPTURE(text);
    CHECK(valid_utf8(text) == text);
  }
  CHECK(valid_utf8(std::string_view("\0x", 2)) == std::string_view("\0x", 2));
}

TEST_CASE("bytes that are not UTF-8 become hex, and their neighbours survive") {
  CHECK(valid_utf8("a\x80z") == "a\\x80z");
  CHECK(valid_utf8("\xe4\xb8") == "\\xe4\\xb8");           // cut short
  CHECK(valid_utf8("\xe4\xb8z") == "\\xe4\\xb8z");         // broken off
  CHECK(valid_utf8("\xe0\x9f\xbf") == "\\xe0\\x9f\\xbf");  // overlong
  CHECK(valid_utf8("\xf0\x8f\xbf\xbf") == "\\xf0\\x8f\\xbf\\xbf");
  CHECK(valid_utf8("\xf5\x80\x80\x80") == "\\xf5\\x80\\x80\\x80");
  CHECK(valid_utf8("\xed\x9f\xbf") == "\xed\x9f\xbf");          // the last before the surrogates
  CHECK(valid_utf8("\xee\x80\x80") == "\xee\x80\x80");          // the first after them
  CHECK(valid_utf8("\xf4\x8f\xbf\xbf") == "\xf4\x8f\xbf\xbf");  // U+10FFFF
}

TEST_CASE("printable text cannot move a terminal's cursor") {
  CHECK(printable("a\nb\tc") == "a\\nb\\tc");
  CHECK(printable("\x1b[2J\r\x7f") == "\\x1b[2J\\x0d\\x7f");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\x9b31m");  // CSI as one C1 character
  CHECK(printable("\xc2\xa0é\xff") == "\xc2\xa0é\\xff");
}

TEST_CASE("length counts characters") {
  CHECK(utf8_length("") == 0);
  CHECK(utf8_length("abc") == 3);
  CHECK(utf8_length("aé世🙂") == 4);
}
