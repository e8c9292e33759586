// `timer_client show` over the logs in data/. Ranks at time of expiry: ranks_test.cpp.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

Ran show(const std::string& id, const std::string& file) {
  return run_command({"show", id, data_path(file)});
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

TEST_CASE("JSON is the records of that id") {
  const Ran ran = run_command({"show", "--json", "k3f9a2-1", data_path("hang.jsonl")});
  CHECK(ran.code == 0);
  CHECK(lines_of(ran.output).size() == 3);
  for (const std::string& line : lines_of(ran.output)) {
    CHECK(contains(line, R"("id":"k3f9a2-1")"));
    CHECK(contains(read_data("hang.jsonl"), line + "\n"));
  }
}

TEST_CASE("the page says what it leaves out of the output of the evidence command") {
  const auto page = [](const std::string& output, std::size_t bytes) {
    HostLog log("node07");
    log.add("expired", kSecondUs, R"(,"pid":11,"id":"a-1","scope":"load")");
    log.add("evidence_command", kSecondUs + 5,
            fmt::format(R"(,"pid":11,"id":"a-1","result":"exited","exit_status":0,"output":"{}",)"
                        R"("output_bytes":{})",
                        output, bytes));
    const TempFolder folder;
    folder.write("log", log.text());
    const std::string text = run_command({"show", "a-1", folder.path("log")}).output;
    const std::size_t begin = text.find("Evidence command (exit status 0)");
    return text.substr(begin, text.find("\n\n", begin) + 1 - begin);
  };
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += fmt::format("line {}\\n", i);
  }
  CHECK(page(lines, 350).ends_with("  line 39\n"));
  CHECK(page(lines + "line 40\\n", 359)
            .ends_with("  line 39\n  ... the record has more: `timer_client show a-1 --json` with "
                       "the same logs.\n"));
  const std::string cut = page(std::string(65536, 'x'), 300000);
  CHECK(cut.size() < 10'000);
  CHECK(cut.ends_with(
      "x\n  ... the record has more: `timer_client show a-1 --json` with the same logs.\n"
      "  It wrote 300000 bytes, of which the record has the first 65536.\n"));
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
