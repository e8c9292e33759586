// `timer_client show` over the logs in data/. Ranks at time of expiry: ranks_test.cpp.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <string>

#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"

namespace filetimer::cli {
namespace {

Ran show(const std::string& id, const std::string& file) {
  return run_command({"show", id, data_path(file)});
}

// data/hang.jsonl without the lines of these events.
std::string log_without(std::initializer_list<std::string_view> events) {
  std::string log;
  for (const std::string& line : lines_of(read_data("hang.jsonl"))) {
    bool left_out = false;
    for (const std::string_view event : events) {
      left_out = left_out || contains(line, "\"event\":\"" + std::string(event) + "\"");
    }
    log += left_out ? "" : line + "\n";
  }
  return log;
}

TEST_CASE("the page of a hung worker") {
  const Ran ran = show("k3f9a2-1", "hang.jsonl");
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  CHECK(ran.output == read_data("hang_page.txt"));
}

TEST_CASE("the page of one that was released after its deadline") {
  const Ran ran = show("last", "hang.jsonl");
  CHECK(ran.code == 0);
  CHECK(contains(ran.output,
                 "rank 0 (pid 4709, trainer) hung in `exchange`: open for 30.0 s of 30 s, "
                 "released\n900 us late"));
  CHECK(contains(ran.output,
                 "First to expire: rank 2 (pid 4711, trainer), k3f9a2-1, the odd one out."));
  CHECK(contains(ran.output, "No signal was sent: it was released first."));
}

TEST_CASE("an id may be its unique beginning, and others are failures that list candidates") {
  CHECK(show("k3f9a2-2", "hang.jsonl").code == 0);
  CHECK(show("esc", "escapes.jsonl").code == 0);
  const Ran ambiguous = show("k3", "hang.jsonl");
  CHECK(ambiguous.code == 1);
  CHECK(ambiguous.output.empty());
  CHECK(contains(ambiguous.errors, "'k3' begins 2 expiries in "));
  CHECK(contains(ambiguous.errors, ": k3f9a2-2, k3f9a2-1\n"));
  const Ran unknown = show("zz\x1b[2J", "hang.jsonl");
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.errors, "no expiry 'zz\\x1b[2J' in "));
  CHECK(contains(unknown.errors, "the latest: k3f9a2-2, k3f9a2-1\n"));
  CHECK(lines_of(unknown.errors).size() == 1);
}

TEST_CASE("without an id it is the last expiry, of the logs that are named first") {
  const TempFolder folder;
  folder.write("expired.jsonl", read_data("hang.jsonl"));
  const std::string last = run_command({"show", "last", folder.path("expired.jsonl")}).output;
  CHECK(contains(last, "rank 0 (pid 4709, trainer) hung"));
  const std::vector<std::vector<std::string>> ways{{"show", folder.path()},
                                                   {"show", folder.path("expired.jsonl")},
                                                   {"show", folder.path() + "/*.jsonl"},
                                                   {"show", "last", folder.path()},
                                                   {"show", "--dir", folder.path()}};
  for (const std::vector<std::string>& words : ways) {
    CAPTURE(words[1]);
    const Ran ran = run_command(words);
    CHECK(ran.code == 0);
    CHECK(ran.errors.empty());
    CHECK(ran.output == last);
  }
  for (const char* const command : {"show", "report"}) {
    const Ran missing = run_command({command, folder.path("no")});
    CHECK(missing.code == 1);
    CHECK(missing.errors ==
          "timer_client: cannot open '" + folder.path("no") + "': No such file or directory\n");
    for (const char* const word : {"no.jsonl", "no*", "no?"}) {
      CAPTURE(word);
      const Ran no_file = run_command({command, word});
      CHECK(no_file.code == 1);
      CHECK(no_file.errors.find("no expiry") == std::string::npos);
      CHECK(contains(no_file.errors, "'" + std::string(word) + "'"));
    }
  }
}

TEST_CASE("a whole id is that id, although others begin with it") {
  const TempFolder folder;
  folder.write("log", R"({"schema":1,"event":"expired","id":"a-10","scope":"ten"})"
                      "\n"
                      R"({"schema":1,"event":"expired","id":"a-1","scope":"one"})"
                      "\n");
  CHECK(contains(run_command({"show", "a-1", folder.path("log")}).output, "`one`"));
}

TEST_CASE("a log without expiries says so") {
  const TempFolder folder;
  folder.write("log", R"({"schema":1,"event":"server_started"})");
  const Ran ran = run_command({"show", "last", folder.path("log")});
  CHECK(ran.code == 1);
  CHECK(ran.errors == "timer_client: no expiry in '" + folder.path("log") + "'\n");
}

TEST_CASE("a page whose later records are missing says so") {
  const TempFolder folder;
  folder.write("log", log_without({"killed", "evidence", "incident", "released_late"}));
  const Ran ran = run_command({"show", "k3f9a2-1", folder.path("log")});
  CHECK(ran.code == 0);
  CHECK(contains(ran.output, "open for 30.0 s of 30 s, and no\nrecord says how it ended."));
  CHECK(contains(ran.output, "The incident record is not in these logs."));
  CHECK(contains(ran.output, "There is no evidence record"));
  CHECK(contains(ran.output, "The server was killed before it could write one"));
}

TEST_CASE("a page whose verdict was rotated away says so") {
  const TempFolder folder;
  folder.write("log", log_without({"expired", "incident"}));
  const Ran ran = run_command({"show", "k3f9a2-1", folder.path("log")});
  CHECK(ran.code == 0);
  CHECK(contains(ran.output, "rank 2 (pid 4711, trainer) hung in `step`: killed with SIGTERM"));
  CHECK(contains(ran.output, "Its `expired` record is not in these logs"));
}

TEST_CASE("JSON is the records of that id") {
  const Ran ran = run_command({"show", "--json", "k3f9a2-1", data_path("hang.jsonl")});
  CHECK(ran.code == 0);
  CHECK(lines_of(ran.output).size() == 3);
  for (const std::string& line : lines_of(ran.output)) {
    CHECK(contains(line, R"("id":"k3f9a2-1")"));
    CHECK(contains(read_data("hang.jsonl"), line + "\n"));
  }
}

TEST_CASE("nothing a record says moves the cursor or makes a line wider than 80") {
  for (const auto& [id, file] :
       {std::pair("k3f9a2-1", "hang.jsonl"), std::pair("esc-1", "escapes.jsonl"),
        std::pair("types-1", "foreign.jsonl")}) {
    const Ran ran = show(id, file);
    CHECK(ran.code == 0);
    for (const std::string& line : lines_of(ran.output)) {
      CAPTURE(line);
      CHECK(printable(line) == line);
      CHECK(utf8_length(line) <= 80);
      CHECK_FALSE(line.ends_with(' '));
    }
  }
}

}  // namespace
}  // namespace filetimer::cli
