// The version-1 line format (docs/protocol.md): which lines are accepted, which are refused and
// why, and that requests of our clients are read back as they were written.
// SPDX-License-Identifier: MIT
#include "common/wire.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
using wire::Request;

namespace {

// Keeps the parser alive for as long as the request points into it.
class Reader {
 public:
  // `padding`: the bytes after a line in the server's buffer: the next line, or rubbish.
  explicit Reader(char padding = '\0') : padding_(padding) {}
  Result<Request> operator()(std::string line) {
    const std::size_t size = line.size();
    line.resize(size + 64, padding_);
    return parser_.parse(std::string_view(line).substr(0, size));
  }

 private:
  wire::Parser parser_;
  char padding_;
};

std::string line_with(const std::string& key, const std::string& value) {
  const auto field = [&](const char* name, const char* usual) {
    return fmt::format("\"{}\": {}", name, key == name ? value : usual);
  };
  return "{" + field("version", "1") + ", " + field("pid", "4711") + ", " +
         field("scope_id", "\"forward\"") + ", " + field("expiration_time", "1795223987.41") +
         ", " + field("signal", "9") + "}";
}

std::string line_with_extra(const std::string& key, const std::string& value) {
  std::string line = line_with("", "");
  line.pop_back();
  return fmt::format("{}, \"{}\": {}}}", line, key, value);
}

const std::string kGood = line_with("", "");

void check_refused(const std::string& line, const std::string& why = {}) {
  CAPTURE(line);
  // The bytes after the line must not matter, even if they complete it.
  for (const char padding : {'\0', '\n', '}', '"', ' ', '1', '\xff'}) {
    const auto request = Reader(padding)(line);
    REQUIRE_FALSE(request.has_value());
    const std::string& message = request.error().message;
    CHECK_FALSE(message.empty());
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 300);
    if (!testing::contains(message, why)) {
      FAIL_CHECK("said: " << message << ", expected: " << why);
    }
  }
}

}  // namespace

TEST_CASE("a line of PyTorch's client is accepted with its values, whatever bytes follow it") {
  for (const char padding : {'\0', '\n', '}', '"', '{', ' ', '1', '\xff'}) {
    Reader read(padding);
    const auto request = read(kGood);
    REQUIRE(request.has_value());
    CHECK(request->pid == 4711);
    CHECK(request->scope_id == "forward");
    CHECK(request->expiration_time == 1795223987.41);
    CHECK(request->signal == 9);
    CHECK_FALSE(request->is_release());
    CHECK_FALSE(request->is_from_own_client());
    CHECK_FALSE(request->x_grace_s.has_value());
  }
}

TEST_CASE("white space, key order and repeated keys are as in Python") {
  Reader read;
  CHECK(read("  " + kGood + " \t\r").has_value());
  CHECK(read(R"({"version":1,"pid":1,"scope_id":"","expiration_time":1,"signal":0})").has_value());
  const auto reordered =
      read(R"({"signal": 15, "expiration_time": 2, "scope_id": "x", "pid": 3, "version": 1})");
  REQUIRE(reordered.has_value());
  CHECK(reordered->signal == 15);
  const auto repeated = read(line_with_extra("pid", "6"));
  REQUIRE(repeated.has_value());
  CHECK(repeated->pid == 6);
  CHECK(read(line_with_extra("p\\u0069d", "7"))->pid == 7);
}

TEST_CASE("expiration times are numbers as Python writes them") {
  Reader read;
  for (const char* text : {"Infinity", "-Infinity", "1e999", "-1e999", "0", "0.0", "-0", "-0.0",
                           "-1", "-1.5", "-5e-324", "1", "1e5", "1E+5", "5e-324",
                           "1795223987.4100001", "99999999999999999999999", "1.7952239874e9"}) {
    CAPTURE(text);
    const auto request = read(line_with("expiration_time", text));
    REQUIRE(request.has_value());
    const double value = std::strtod(text, nullptr);
    CHECK(request->expiration_time == value);
    CHECK(request->is_release() == (value < 0));
  }
}

TEST_CASE("an expiration time that is not a number is refused") {
  for (const char* value :
       {"NaN",          "-NaN", "nan",       "true",      "false",     "null", "\"1\"",
        "\"Infinity\"", "[1]",  "{}",        "[]",        "1.",        "01",   "+1",
        ".5",           "0x10", "Infinityx", "Infinity1", "-infinity", "inf",  "1 2",
        "--1",          "1e",   "1e+",       "1.2.3",     "-"}) {
    check_refused(line_with("expiration_time", value));
  }
  check_refused(line_with("expiration_time", ""));
  check_refused(line_with("expiration_time", "\"9\""), "expiration_time is \"9\"");
}

TEST_CASE("pid and signal are integers that fit an int") {
  Reader read;
  for (const char* key : {"pid", "signal"}) {
    for (const char* value : {"0", "-1", "1", "999", "2147483647", "-2147483648"}) {
      CAPTURE(key);
      CAPTURE(value);
      CHECK(read(line_with(key, value)).has_value());
    }
    for (const char* value :
         {"\"9\"", "9.0", "9e0", "true", "null", "[9]", "{\"a\": 9}", "2147483648", "-2147483649",
          "99999999999999999999", "0x9", "09", "9a", "NaN", "Infinity"}) {
      check_refused(line_with(key, value), std::string(key) + " is ");
    }
  }
  check_refused(line_with("signal", std::string(41, '9')),
                "signal is " + std::string(40, '9') + ": expected an integer of 32 bits");
}

TEST_CASE("a larger or another version is refused") {
  check_refused(line_with("version", "2"), "version is 2: expected 1");
  for (const char* value : {"0", "-1", "1.0", "\"1\"", "true", "null", "99999999999999999999"}) {
    check_refused(line_with("version", value), "version is ");
  }
}

TEST_CASE("scope names are strings, whatever is in them") {
  struct Row {
    std::string json;
    std::string value;
  };
  Reader read;
  for (const Row& row : std::vector<Row>{{R"("")", ""},
                                         {R"("contextlib.py#137")", "contextlib.py#137"},
                                         {R"("\u00e9 \u4e16 \ud83d\ude42")", "é 世 🙂"},
                                         {"\"é 世 🙂\"", "é 世 🙂"},
                                         {R"("\"\\\/\b\f\n\r\t")", "\"\\/\b\f\n\r\t"},
                                         {R"("{\"version\": 1}")", "{\"version\": 1}"},
                                         {R"("a, b: [c] {d}")", "a, b: [c] {d}"},
                                         {R"("a\u0000b")", std::string("a\0b", 3)}}) {
    CAPTURE(row.json);
    const auto request = read(line_with("scope_id", row.json));
    REQUIRE(request.has_value());
    CHECK(request->scope_id == row.value);
  }
}

TEST_CASE("half a surrogate pair, which Python's json writes and reads, names a scope") {
  Reader read;
  const auto one = read(line_with("scope_id", R"("a\ud800\\ ")"));
  REQUIRE(one.has_value());
  const std::string first(one->scope_id);
  CHECK(first == R"(a\ud800\\ )");
  const auto two = read(line_with("scope_id", R"("a\udfff")"));
  REQUIRE(two.has_value());
  CHECK(two->scope_id != first);
}

TEST_CASE("scope names that are not JSON strings are refused") {
  for (const char* value :
       {"12", "null", "true", "[\"a\"]", "{\"a\": 1}", "\"a\\qb\"", "\"\xff\"", "\"\xed\xa0\x80\"",
        "\"a\tb\"", "\"a\x01\"", "'a'", "a", "\"a", "\"a\\\"", "\"\\u12\"", "\"\\uZZZZ\"",
        "\"\\ud800\\uZZZZ\"", "\"\\ud800\\q\"", "\"\\ud800\\u123\""}) {
    check_refused(line_with("scope_id", value));
  }
  check_refused(line_with("scope_id", R"("\u")"));
}

TEST_CASE("a key that is missing is named") {
  for (const char* key : {"version", "pid", "scope_id", "expiration_time", "signal"}) {
    std::string line = kGood;
    line.replace(line.find(fmt::format("\"{}\"", key)) + 1, 1, "z");
    check_refused(line, fmt::format("lacks the key '{}'", key));
  }
}

// A byte order mark before the object is not among them: a parser may ignore it (RFC 8259), and
// simdjson does from version 3 on.
TEST_CASE("a line that is not one JSON object is refused") {
  for (const std::string_view text :  // "@" stands for a good line
       {"",    " ",   "\t \r", "nope", "\"s\"", "12",       "null", "true", "[]", "[1,2]",
        "{}",  "{",   "}",     "{\"",  "[@]",   "@@",       "@ @",  "@,",   "@]", "@}",
        "@ x", "@\"", "{@",    "x@",   ",@",    "\xff\xfe", "\x80", "@\xff"}) {
    std::string line;
    for (const char byte : text) {
      line += byte == '@' ? kGood : std::string(1, byte);
    }
    check_refused(line);
  }
  const std::string nul(1, '\0');
  for (const std::string& line : {nul, std::string(100, '\0'), kGood + nul, nul + kGood}) {
    check_refused(line);
  }
}

TEST_CASE("a good line cut short anywhere is refused, and so is its end alone") {
  for (std::size_t cut = 1; cut < kGood.size(); ++cut) {
    check_refused(kGood.substr(0, cut));
    check_refused(kGood.substr(cut));
  }
}

TEST_CASE("unknown keys are ignored if they are JSON") {
  Reader read;
  for (const char* value :
       {"1", "-1.5e-3", "true", "false", "null", "\"s\"", "[]", "{}", "[1,2,{\"a\":null}]",
        "{\"pid\": 9, \"b\": [true, \"x\"]}", "Infinity", "-Infinity", "NaN", "[NaN]"}) {
    CAPTURE(value);
    for (const char* key : {"x_anything", "x_idle"}) {  // the latter had a meaning once
      const auto request = read(line_with_extra(key, value));
      REQUIRE(request.has_value());
      CHECK(request->pid == 4711);
    }
  }
  for (const char* value : {"[1,,2]", "{\"a\":}", "nul", "nullx", "tru", "1.2.3", "\"a", "[1",
                            "{\"a\" 1}", "[1}", "{\"a\": 1]", "", "\"\\q\"", "[1 2]", "[,]"}) {
    check_refused(line_with_extra("x_anything", value));
  }
}

TEST_CASE("nesting under an unknown key is bounded and never more than refused") {
  Reader read;
  for (std::size_t depth = 1; depth <= 1500; ++depth) {
    const std::string array = std::string(depth, '[') + std::string(depth, ']');
    CHECK(read(line_with_extra("x", array)).has_value() == (depth <= 17));
    std::string object;
    for (std::size_t i = 0; i < depth && i < 700; ++i) {
      object += "{\"\":";
    }
    object += "1" + std::string(std::min<std::size_t>(depth, 700), '}');
    CHECK(read(line_with_extra("x", object)).has_value() == (depth <= 16));
  }
  CHECK(read(kGood).has_value());
}

TEST_CASE("the longest line of PyTorch's client is accepted and one byte more is not") {
  Reader read;
  const auto line_of = [](std::size_t bytes) {
    const std::size_t around = line_with("scope_id", "\"\"").size();
    return line_with("scope_id", "\"" + std::string(bytes - around, 'x') + "\"");
  };
  REQUIRE(line_of(kMaxLineBytes - 1).size() == 4096);
  const auto longest = read(line_of(kMaxLineBytes - 1));
  REQUIRE(longest.has_value());
  CHECK(longest->scope_id.size() > 3900);
  const auto longer = read(line_of(kMaxLineBytes));
  REQUIRE_FALSE(longer.has_value());
  CHECK(longer.error().message == "a line of 4098 bytes: expected at most 4097 with its newline");
  CHECK_FALSE(read(line_of(1 << 20)).has_value());
}

TEST_CASE("a key of our own clients with a wrong value is refused") {
  struct Wrong {
    const char* key;
    const char* value;
  };
  for (const auto& [key, value] :
       {Wrong{"x_timeout_s", "\"30\""}, Wrong{"x_timeout_s", "NaN"}, Wrong{"x_grace_s", "null"},
        Wrong{"x_grace_s", "true"}, Wrong{"x_soft_s", "\"5\""}, Wrong{"x_tid", "0"},
        Wrong{"x_tid", "-3"}, Wrong{"x_tid", "1.5"}, Wrong{"x_scope", "1"},
        Wrong{"x_whole_process", "1"}, Wrong{"x_scope", "null"}, Wrong{"x_timeout_s", "0"}}) {
    check_refused(line_with_extra(key, value), key);
  }
}

TEST_CASE("requests of our clients are read back as they were written") {
  const std::vector<std::string> names{"",
                                       "forward",
                                       "é 世 🙂",
                                       "\"quoted\" \\ back",
                                       "tab\tline\nreturn\r",
                                       "\x01\x1f\x7f",
                                       std::string("nul\0inside", 10),
                                       bounded_scope_name(std::string(5000, 'x'))};
  for (const std::string& name : names) {
    for (const double expiration : {-1.0, 0.0, 1795223987.4100001, HUGE_VAL}) {
      for (const bool own : {false, true}) {
        CAPTURE(name);
        CAPTURE(expiration);
        Request request;
        request.pid = 4711;
        request.scope_id = name;
        request.expiration_time = expiration;
        request.signal = 9;
        if (own) {
          request.x_timeout_s = expiration + 2;
          request.x_grace_s = expiration == 0 ? -1 : 0.25;
          request.x_soft_s = 1.75;
          request.x_tid = 4712;
          request.x_scope = name;
          request.x_whole_process = expiration == 0;
        }
        const std::string line = wire::format(request);
        REQUIRE(line.ends_with("}\n"));
        CHECK(line.starts_with(wire::kLineStart));
        CHECK(std::count(line.begin(), line.end(), '\n') == 1);
        Reader read;
        const auto back = read(line.substr(0, line.size() - 1));
        REQUIRE(back.has_value());
        CHECK(*back == request);
        CHECK(back->is_from_own_client() == own);
      }
    }
  }
}

TEST_CASE("a line with bounded names is short enough for one atomic write") {
  Request request;
  request.pid = 2147483647;
  request.expiration_time = 1.7976931348623157e308;
  request.signal = -2147483648;
  request.x_timeout_s = -1.2345678901234567e-300;
  request.x_grace_s = -1.2345678901234567e-300;
  request.x_soft_s = -1.2345678901234567e-300;
  request.x_tid = 2147483647;
  request.x_whole_process = true;
  for (const char byte : {'\x01', '\xff', '"', '\x7f'}) {
    const std::string name = bounded_scope_name(std::string(kMaxScopeNameBytes, byte));
    request.scope_id = name;
    request.x_scope = name;
    CHECK(wire::format(request).size() <= kMaxAtomicWrite);
  }
}

TEST_CASE("a control request is read back as it was written, and is no line of the pipe") {
  wire::Question question;
  question.request = "rendezvous";
  question.graceful = "workers";
  question.force = true;
  question.off = true;
  question.name = "epoch \"1\"";
  question.rank = 0;
  question.world = 8;
  question.worker = 4712;
  for (const double wait : {0.25, HUGE_VAL}) {
    question.wait_s = wait;
    const auto back = wire::parse_question(wire::format_question(question));
    REQUIRE(back.has_value());
    CHECK(*back == question);
  }
  CHECK(wire::parse_question(std::string(4097, ' ')).error().message ==
        "a request of 4097 bytes or more: expected at most 4096");
  Reader read;
  CHECK(read(R"({"version": 1, "x_request": "ping"})").error().message == "lacks the key 'pid'");
}

TEST_CASE("a wake-up message needs a version beside its page, and no other key") {
  Reader read;
  const auto hint = read(R"({"version": 1, "x_page": "4711-8d2f60c1a5b37e94"})");
  REQUIRE(hint.has_value());
  CHECK(hint->x_page == "4711-8d2f60c1a5b37e94");
  CHECK_FALSE(read(R"({"x_page": "4711-8d2f60c1a5b37e94"})").has_value());
  CHECK_FALSE(read(R"({"version": 2, "x_page": "4711-8d2f60c1a5b37e94"})").has_value());
  CHECK_FALSE(read(R"({"version": 1, "x_page": 4711})").has_value());
}
