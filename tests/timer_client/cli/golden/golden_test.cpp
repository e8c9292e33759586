// What the commands print of the logs beside this file: NAME/*.jsonl are the logs of made-up hosts,
// with every event and field and many of them absent, and NAME.golden is the transcript. A change
// of a text is a change of the transcript, which FILETIMER_UPDATE_GOLDEN=1 writes.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"

namespace filetimer::cli {
namespace {

struct GoldenLogs {
  std::string name;
  std::vector<std::string> shown;     // ids
  std::vector<std::string> reported;  // of them
};

std::string without_places(std::string text, const std::string& logs, const std::string& folder) {
  for (const auto& [place, word] : {std::pair{logs, "LOGS"}, {folder, "OUT"}}) {
    for (std::size_t at = 0; (at = text.find(place, at)) != text.npos;) {
      text.replace(at, place.size(), word);
    }
  }
  return text;
}

std::string transcript_of(const GoldenLogs& golden) {
  const std::string logs = FILETIMER_GOLDEN_DATA "/" + golden.name;
  const TempFolder folder;
  std::string transcript;
  const auto add = [&](std::vector<std::string> words) {
    words.push_back(logs);
    const Ran ran = run_command(words);
    transcript += fmt::format("$ {}\n{}{}exit {}\n\n", fmt::join(words, " "), ran.output,
                              ran.errors, ran.code);
  };
  add({"log"});
  add({"log", "--event", "incident,evidence,evidence_command,peer_evidence,worker_ended"});
  add({"suggest"});
  add({"suggest", "--format", "toml", "--factor", "10"});
  add({"suggest", "--format", "json", "--floor", "5s"});
  for (const std::string& id : golden.shown) {
    add({"show", id});
  }
  for (const std::string& id : golden.reported) {
    add({"report", id, "-o", folder.path("html"), "--perfetto", folder.path("trace")});
    const std::string html = testing::read_file(folder.path("html"));
    transcript +=
        html.substr(html.find("</style>")) + testing::read_file(folder.path("trace")) + "\n";
  }
  return without_places(std::move(transcript), logs, folder.path());
}

TEST_CASE("what the commands print of the golden logs is their transcript") {
  for (const GoldenLogs& golden : {GoldenLogs{"one_scope", {"n1-1"}, {"n1-1"}},
                                   {"one_host", {"n10-1", "n10-2", "n10-3"}, {"n10-1"}},
                                   {"two_hosts",
                                    {"n30-1", "n30-2", "n30-5", "n31-1", "n31-2", "n31-4", "n31-5"},
                                    {"n30-1", "n31-5"}},
                                   {"three_hosts",
                                    {"n60-2", "n60-4", "n60-5", "n61-2", "n61-3", "n61-5", "n62-2"},
                                    {"n60-4", "n62-2"}}}) {
    CAPTURE(golden.name);
    const std::string path = fmt::format("{}/{}.golden", FILETIMER_GOLDEN_DATA, golden.name);
    const std::string transcript = transcript_of(golden);
    if (const char* const update = std::getenv("FILETIMER_UPDATE_GOLDEN"); update != nullptr) {
      testing::write_file(path, transcript);
    }
    const std::vector<std::string> is = lines_of(transcript);
    const std::vector<std::string> expected = lines_of(testing::read_file(path));
    for (std::size_t i = 0; i < std::min(is.size(), expected.size()); ++i) {
      CAPTURE(i + 1);
      REQUIRE(is[i] == expected[i]);
    }
    CHECK(is.size() == expected.size());
  }
}

}  // namespace
}  // namespace filetimer::cli
