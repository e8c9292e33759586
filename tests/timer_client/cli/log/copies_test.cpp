// Folders in which a log and copies of it stand side by side.
// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/copies.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/limits.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/merge.hpp"

namespace filetimer::cli {
namespace {

// A log of `records` records, each a second after the other.
std::string log_text(const std::string& host, int records, int first = 0,
                     std::size_t first_bytes = 0) {
  HostLog log{host};
  for (int i = first; i < first + records; ++i) {
    log.add(i == 0 ? "server_started" : "rejected", i * kSecondUs,
            fmt::format(R"(,"count":{},"line":"{}")", i,
                        std::string(i == first ? first_bytes : 0, 'x')));
  }
  return log.text();
}

struct FolderOfLogs {
  TempFolder folder;

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder.path(name)).parent_path());
    testing::write_file(folder.path(name), text);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path(name); }
  [[nodiscard]] OpenedLogs open(Copies copies = Copies::kLeftOut) const {
    return open_logs("", {folder.path()}, copies);
  }
  [[nodiscard]] static std::size_t records(OpenedLogs& opened) {
    std::size_t count = 0;
    read_merged(opened.logs, [&](const Record&) {
      ++count;
      return true;
    });
    return count;
  }
};

TEST_CASE("a copy of a log is not read, and one line names both") {
  const FolderOfLogs logs;
  logs.write("a/x.jsonl", log_text("node01", 5));
  logs.write("b/x.jsonl", log_text("node01", 5));
  logs.write("c/y.jsonl", log_text("node02", 5));
  OpenedLogs opened = logs.open();
  CHECK(opened.problems.empty());
  CHECK(opened.notes == std::vector<std::string>{"'" + logs.path("b/x.jsonl") + "' is a copy of '" +
                                                 logs.path("a/x.jsonl") + "': not read"});
  CHECK(FolderOfLogs::records(opened) == 10);
}

TEST_CASE("of a log and older copies of it the longest is read, whichever comes first") {
  const FolderOfLogs logs;
  logs.write("a/x.jsonl", log_text("node01", 3));
  logs.write("b/x.jsonl", log_text("node01", 300));
  std::string torn = log_text("node01", 200);
  torn.resize(torn.size() - 20);
  logs.write("c/x.jsonl", torn);
  OpenedLogs opened = logs.open();
  CHECK(opened.notes ==
        std::vector<std::string>{"'" + logs.path("a/x.jsonl") + "' is an older copy of '" +
                                 logs.path("b/x.jsonl") +
                                 "', and 1 more file is a copy of others: not read"});
  CHECK(FolderOfLogs::records(opened) == 300);
  logs.write("d/x.jsonl", log_text("node01", 100));
  CHECK(testing::contains(logs.open().notes[0],
                          "', and 2 more files are copies of others: not read"));
}

TEST_CASE("a rotated log and a copy from before the rotation count once") {
  const FolderOfLogs logs;
  logs.write("a/x.jsonl.1", log_text("node01", 20));
  logs.write("a/x.jsonl", log_text("node01", 20, 20));
  logs.write("b/x.jsonl", log_text("node01", 15));
  OpenedLogs opened = logs.open();
  CHECK(opened.notes ==
        std::vector<std::string>{"'" + logs.path("b/x.jsonl") + "' is an older copy of '" +
                                 logs.path("a/x.jsonl.1") + "': not read"});
  CHECK(FolderOfLogs::records(opened) == 40);
}

TEST_CASE("a copy whose first line is as long as a record may be is found") {
  const FolderOfLogs logs;
  const std::string text = log_text("node01", 2, 0, kMaxRecordBytes - 1000);
  logs.write("a.jsonl", text);
  logs.write("b.jsonl", text);
  OpenedLogs opened = logs.open();
  CHECK(opened.notes.size() == 1);
  CHECK(FolderOfLogs::records(opened) == 2);
}

TEST_CASE("logs that only begin alike are all read") {
  const FolderOfLogs logs;
  SUBCASE("because they are empty") {
    logs.write("a.jsonl", "");
    logs.write("b.jsonl", "");
    logs.write("c.jsonl", "\n");
    logs.write("d.jsonl", "\n");
    OpenedLogs opened = logs.open();
    CHECK(opened.notes.empty());
    CHECK(opened.logs.size() == 4);
  }
  SUBCASE("because their first lines are torn, or are no records") {
    const std::string text = log_text("node01", 1);
    logs.write("a.jsonl", text.substr(0, 50));
    logs.write("b.jsonl", text.substr(0, 50));
    logs.write("c.jsonl", "# a heading\n" + log_text("node02", 1));
    logs.write("d.jsonl", "# a heading\n" + log_text("node03", 1));
    OpenedLogs opened = logs.open();
    CHECK(opened.notes.empty());
    CHECK(FolderOfLogs::records(opened) == 2);
  }
  SUBCASE("because somebody chose other records of one log") {
    logs.write("a.jsonl", log_text("node01", 1) + log_text("node01", 3, 7));
    logs.write("b.jsonl", log_text("node01", 9));
    OpenedLogs opened = logs.open();
    CHECK(opened.notes.empty());
    CHECK(FolderOfLogs::records(opened) == 13);
  }
}

TEST_CASE("logs that are followed are all opened, copies or not") {
  const FolderOfLogs logs;
  logs.write("a.jsonl", log_text("node01", 5));
  logs.write("b.jsonl", log_text("node01", 5));
  const OpenedLogs opened = logs.open(Copies::kKept);
  CHECK(opened.notes.empty());
  CHECK(opened.logs.size() == 2);
}

}  // namespace
}  // namespace filetimer::cli
