// The output of JsonWriter, read back by simdjson.
// SPDX-License-Identifier: MIT
#include "common/json_writer.hpp"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/json_line.hpp"

using namespace filetimer;
using testing::JsonLine;

namespace {

std::string read_string(std::string_view written) {
  return JsonLine(std::move(JsonWriter().field("s", written)).finish()).text("s");
}

}  // namespace

TEST_CASE("every type of field reads back as it was written") {
  JsonWriter writer;
  writer.field("int", std::int64_t{-9007199254740993})
      .field("unsigned", std::numeric_limits<std::uint64_t>::max())
      .field("small", std::int8_t{65})
      .field("yes", true)
      .field("no", false)
      .field("text", "plain")
      .field("double", 0.1)
      .fixed("fixed", 1.23456, 3)
      .null("nothing");
  const JsonLine back(std::move(writer).finish());
  CHECK(back.integer("int") == -9007199254740993);
  CHECK(std::uint64_t(back.at("unsigned")) == std::numeric_limits<std::uint64_t>::max());
  CHECK(back.integer("small") == 65);
  CHECK(back.flag("yes"));
  CHECK_FALSE(back.flag("no"));
  CHECK(back.text("text") == "plain");
  CHECK(back.number("double") == 0.1);
  CHECK(back.number("fixed") == 1.235);
  CHECK(back.is_null("nothing"));
}

TEST_CASE("a double reads back bit by bit") {
  for (const double value : {0.0, -0.0, 1.0, 1e300, 5e-324, 1795223987.4100001, 1e21, -2.5e-7,
                             std::numeric_limits<double>::max()}) {
    CAPTURE(value);
    const JsonLine back(std::move(JsonWriter().field("d", value)).finish());
    CHECK(back.number("d") == value);
  }
}

TEST_CASE("numbers that JSON cannot express are null") {
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    CAPTURE(value);
    JsonWriter writer;
    writer.field("d", value).fixed("f", value, 3);
    const JsonLine back(std::move(writer).finish());
    CHECK(back.is_null("d"));
    CHECK(back.is_null("f"));
  }
}

TEST_CASE("UTF-8 survives in a string, and what is not UTF-8 is written as its bytes in hex") {
  std::string all;
  for (int c = 0; c < 128; ++c) {
    all += static_cast<char>(c);
  }
  CHECK(read_string(all) == all);
  CHECK(read_string("Grüße, 世界 🙂") == "Grüße, 世界 🙂");
  CHECK(read_string("\xff") == "\\xff");
  CHECK(read_string("a\xc3") == "a\\xc3");
}

TEST_CASE("a record stays one line whatever the name of a worker is") {
  const std::string line =
      std::move(JsonWriter().field("comm", "a\nb\rc\x1b[31m\x7f").field("k\n", 1).field("\x7f", 1))
          .finish();
  for (const char c : line) {
    CHECK(static_cast<unsigned char>(c) >= 0x20);
    CHECK(c != 0x7F);
  }
}

TEST_CASE("every single byte and every pair of bytes gives a strict line") {
  simdjson::dom::parser parser;
  int wrong = 0;
  for (int first = 0; first < 256; ++first) {
    for (int second = -1; second < 256; ++second) {
      std::string bytes(1, static_cast<char>(first));
      if (second >= 0) {
        bytes += static_cast<char>(second);
      }
      const std::string line = std::move(JsonWriter().field("s", std::string_view(bytes))).finish();
      simdjson::dom::element root;
      wrong += parser.parse(line).get(root) == simdjson::SUCCESS ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("objects and arrays nest and may be empty, and a string may end in an opening bracket") {
  CHECK(JsonWriter().finish() == "{}");
  JsonWriter writer;
  writer.begin_array("list").element(1).element("two").begin_object();
  writer.field("three", 3.5).begin_array("empty").end_array().end_object();
  writer.begin_array("").element(true).end_array().end_array();
  writer.begin_object("object").end_object().field("after", 1);
  CHECK(writer.size() > 0);
  const std::string text = std::move(writer).finish();
  CHECK(text == R"({"list":[1,"two",{"three":3.5,"empty":[]},[true]],"object":{},"after":1})");
  const JsonLine back(text);
  CHECK(double(back.at("list").at(2)["three"]) == 3.5);
  JsonWriter brackets;
  brackets.field("a", "[").field("b", "{").begin_array("c").element("[").element("{").end_array();
  const JsonLine strings(std::move(brackets).finish());
  CHECK(strings.text("b") == "{");
  CHECK(std::string_view(strings.at("c").at(1)) == "{");
}
