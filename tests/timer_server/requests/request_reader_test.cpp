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

// One read of the pipe after the other. Returns what was seen.
Seen seen_in(const std::vector<std::string>& reads) {
  Seen seen;
  RequestReader reader{std::ref(seen)};
  for (std::string_view bytes : reads) {
    while (!bytes.empty()) {
      const auto room = reader.room();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), count, room.begin());
      reader.received(count);
      bytes.remove_prefix(count);
    }
  }
  return seen;
}

using Names = std::vector<std::string>;

// A scope for a line of so many bytes.
std::string scope_for(std::size_t bytes) {
  return std::string(bytes - line("").size(), 'x');
}

}  // namespace

TEST_CASE("Lines are found wherever the reads split them") {
  const std::string text = line("a") + line("b") + line("c");
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const Seen seen = seen_in({text.substr(0, cut), text.substr(cut)});
    CHECK(seen.scopes == Names{"a", "b", "c"});
    CHECK(seen.rejected.empty());
  }
}

TEST_CASE("An incomplete line is cut off the next writer's line") {
  const std::string whole = line("lost");
  // The last one is a whole line without its newline.
  for (std::size_t length = 1; length < whole.size(); ++length) {
    CAPTURE(length);
    const Seen seen = seen_in({whole.substr(0, length), line("kept")});
    CHECK(seen.scopes == Names{"kept"});
    CHECK(seen.rejected.size() == 1);
  }
}

TEST_CASE("A malformed line is rejected, and the lines around it are parsed") {
  const std::string longest = scope_for(kMaxLineBytes);
  struct Row {
    const char* what;
    std::vector<std::string> reads;
    Names scopes;
    std::size_t rejected;
    const char* reason = "";  // a part of it
  };
  std::vector<std::string> without_end(1000, std::string(10'000, 'x'));
  without_end.push_back("\n" + line("next"));
  for (const Row& row :
       {Row{"lines that are no requests",
            {line("a") + "garbage\n" + line("b") + "\n" + line("c") + "[]\n" + line("d")},
            {"a", "b", "c", "d"},
            3},
        Row{"two objects on one line, in one read",
            {line("a").substr(0, line("a").size() - 1) + line("b") + line("c")},
            {"c"},
            1},
        Row{"the longest line, and one with one more byte",
            {line(longest), line(longest + "x") + line("next")},
            {longest, "next"},
            1},
        Row{"an incomplete line over the limit",
            {std::string(100'000, 'x'), line("kept")},
            {"kept"},
            1},
        Row{"a line without an end, which takes no memory",
            without_end,
            {"next"},
            1,
            "a line of 10000001 bytes"},
        Row{"the start of a line inside a string",
            {R"({"version": 1, "pid": "x", "scope_id": "{\"version\"", "signal": 9})"
             "\n"},
            {},
            1}}) {
    CAPTURE(row.what);
    const Seen seen = seen_in(row.reads);
    CHECK(seen.scopes == row.scopes);
    REQUIRE(seen.rejected.size() == row.rejected);
    CHECK(seen.rejected[0].find(row.reason) != std::string::npos);
  }
}
