// SPDX-License-Identifier: MIT
#include "timer_server/requests/request_reader.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

using namespace filetimer;

namespace {

struct Seen {
  std::vector<std::string> scopes;
  std::vector<std::string> rejected;
  void operator()(const Result<wire::Request>& request, std::string_view) {
    if (request) {
      scopes.emplace_back(request->scope_id);
    } else {
      rejected.push_back(request.error().message);
    }
  }
};

std::string line(std::string_view scope) {
  return fmt::format(
      R"({{"version": 1, "pid": 4711, "scope_id": "{}", "expiration_time": 1.5, "signal": 9}})"
      "\n",
      scope);
}

std::string without_newline(std::string text) {
  text.pop_back();
  return text;
}

struct Reading {
  Seen seen;
  RequestReader reader{std::ref(seen)};
  // One call is one read of the pipe.
  void read(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto room = reader.room();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), count, room.begin());
      reader.received(count);
      bytes.remove_prefix(count);
    }
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Lines are found wherever the reads split them") {
  const std::string text = line("a") + line("b") + line("c");
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Reading reading;
    reading.read(text.substr(0, cut));
    reading.read(text.substr(cut));
    CHECK(reading.seen.scopes == Names{"a", "b", "c"});
    CHECK(reading.seen.rejected.empty());
  }
}

TEST_CASE("A malformed line is rejected, and the lines around it are parsed") {
  Reading reading;
  reading.read(line("a") + "garbage\n" + line("b") + "\n" + line("c") + "[]\n" + line("d"));
  CHECK(reading.seen.scopes == Names{"a", "b", "c", "d"});
  CHECK(reading.seen.rejected.size() == 3);
}

TEST_CASE("An incomplete line is cut off the next writer's line") {
  const std::string whole = line("lost");
  for (std::size_t length = 1; length < whole.size() - 1; ++length) {
    CAPTURE(length);
    Reading reading;
    reading.read(whole.substr(0, length));
    reading.read(line("kept"));
    CHECK(reading.seen.scopes == Names{"kept"});
    CHECK(reading.seen.rejected.size() == 1);
  }
}

TEST_CASE("A whole line without its newline is cut off a line that was read later") {
  Reading reading;
  reading.read(without_newline(line("lost")));
  reading.read(line("kept"));
  CHECK(reading.seen.scopes == Names{"kept"});
  CHECK(reading.seen.rejected.size() == 1);
}

TEST_CASE("Two objects on one line that came in one read are rejected together") {
  Reading reading;
  reading.read(without_newline(line("a")) + line("b") + line("c"));
  CHECK(reading.seen.scopes == Names{"c"});
  CHECK(reading.seen.rejected.size() == 1);
}

TEST_CASE("The longest line is parsed, and a line with one more byte is rejected") {
  const std::size_t frame = line("").size();
  Reading reading;
  reading.read(line(std::string(kMaxLineBytes - frame, 'x')));
  CHECK(reading.seen.scopes.size() == 1);
  reading.read(line(std::string(kMaxLineBytes - frame + 1, 'x')) + line("next"));
  CHECK(reading.seen.scopes.size() == 2);
  CHECK(reading.seen.scopes.back() == "next");
  CHECK(reading.seen.rejected.size() == 1);
}

TEST_CASE("A line without an end takes no memory, and the next line is parsed") {
  Reading reading;
  for (int i = 0; i < 1000; ++i) {
    reading.read(std::string(10'000, 'x'));
  }
  reading.read("\n" + line("next"));
  CHECK(reading.seen.scopes == Names{"next"});
  REQUIRE(reading.seen.rejected.size() == 1);
  CHECK(reading.seen.rejected[0].find("a line of 10000001 bytes") != std::string::npos);
}

TEST_CASE("A line after an incomplete line over the limit is parsed") {
  Reading reading;
  reading.read(std::string(100'000, 'x'));
  reading.read(line("kept"));
  CHECK(reading.seen.scopes == Names{"kept"});
  CHECK(reading.seen.rejected.size() == 1);
}

TEST_CASE("The start of a line inside a string is not a line") {
  Reading reading;
  reading.read(R"({"version": 1, "pid": "x", "scope_id": "{\"version\"", "signal": 9})"
               "\n");
  CHECK(reading.seen.scopes.empty());
  CHECK(reading.seen.rejected.size() == 1);
}
