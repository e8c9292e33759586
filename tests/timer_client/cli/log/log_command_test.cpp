// `timer_client log` over the logs in data/.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

Ran log_of(const std::string& file, std::vector<std::string> words = {}) {
  words.insert(words.begin(), "log");
  words.push_back(data_path(file));
  return run_command(words);
}

TEST_CASE("the log is a table of 80 columns without the long records") {
  const Ran ran = log_of("hang.jsonl");
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  CHECK(ran.output == read_data("hang_table.txt"));
}

TEST_CASE("JSON is the lines themselves, the long ones too") {
  CHECK(log_of("hang.jsonl", {"--json"}).output == read_data("hang.jsonl"));
  const Ran one = log_of("hang.jsonl", {"--json", "--event", "evidence"});
  CHECK(lines_of(one.output).size() == 1);
  CHECK(read_data("hang.jsonl").find(one.output) != std::string::npos);
}

TEST_CASE("a log with other lines is shown, and how many were skipped is told once") {
  const Ran ran = log_of("foreign.jsonl");
  CHECK(ran.code == 0);
  CHECK(lines_of(ran.output).size() == 5);
  CHECK(ran.errors == "timer_client: skipped 6 lines that are no records in '" +
                          data_path("foreign.jsonl") + "'\n");
}

TEST_CASE("nothing to show is told on standard error and is no failure") {
  const TempFolder folder;
  folder.write("expired.jsonl", "");
  const Ran empty = run_command({"log", "--dir", folder.path()});
  CHECK(empty.code == 0);
  CHECK(empty.output.empty());
  CHECK(empty.errors == "timer_client: no records in '" + folder.path("expired.jsonl") + "'\n");
  const Ran none = log_of("hang.jsonl", {"--rank", "77"});
  CHECK(none.code == 0);
  CHECK(none.output.empty());
  CHECK(none.errors ==
        "timer_client: no record in '" + data_path("hang.jsonl") + "' matches, of 11\n");
}

TEST_CASE("wrong words are usage errors that quote them") {
  const Ran event = log_of("hang.jsonl", {"--event", "exploded"});
  CHECK(event.code == -1);
  CHECK(event.errors.find("unknown event 'exploded': expected one of server_started,") !=
        std::string::npos);
  const Ran since = log_of("hang.jsonl", {"--since", "noon"});
  CHECK(since.code == -1);
  CHECK(since.errors.find("'noon' is no time") != std::string::npos);
  const Ran rank = log_of("hang.jsonl", {"--rank", "two"});
  CHECK(rank.code == -1);
  CHECK(rank.errors == "--rank: 'two' is not a number: expected 0 or more");
  CHECK(log_of("hang.jsonl", {"--pid", "99999999999999999999"}).errors ==
        "--pid: '99999999999999999999' is not a number: expected 0 or more");
  CHECK(log_of("hang.jsonl", {"--host", ""}).errors == "--host: '': expected a name");
  CHECK(log_of("hang.jsonl", {"--scope", ""}).errors == "--scope: '': expected a name");
}

TEST_CASE("a log that is not there is a failure that names the path tried") {
  const Ran named = run_command({"log", "/nonexistent/x.jsonl"});
  CHECK(named.code == 1);
  CHECK(named.errors ==
        "timer_client: cannot open '/nonexistent/x.jsonl': No such file or directory\n");
  const TempFolder folder;
  const Ran dir = run_command({"log", "--dir", folder.path()});
  CHECK(dir.code == 1);
  CHECK(dir.errors.find("'" + folder.path("expired.jsonl") + "'") != std::string::npos);
  ::unsetenv("FILETIMER_DIR");
  ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
  const Ran defaulted = run_command({"log"});
  ::unsetenv("XDG_STATE_HOME");
  ::unsetenv("XDG_RUNTIME_DIR");
  CHECK(defaulted.code == 1);
  CHECK(defaulted.errors.find("'" + folder.path() + "/filetimer/") != std::string::npos);
  CHECK(defaulted.errors.find("the default place") != std::string::npos);
  CHECK(run_command({"log", folder.path()}).errors ==
        "timer_client: no log (*.jsonl) in folder '" + folder.path() + "'\n");
}

TEST_CASE("suggest prints what it can read, and nothing but the reason where it can read nothing") {
  const TempFolder folder;
  const std::string none = folder.path("none");
  const std::string empty = folder.path("");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{none}, {empty}, {"--dir", none}, {none, "--format", "toml"}}) {
    std::vector<std::string> command{"suggest"};
    command.insert(command.end(), words.begin(), words.end());
    const Ran ran = run_command(command);
    CHECK(ran.code == 1);
    CHECK(ran.output.empty());
    CHECK(lines_of(ran.errors).size() == 1);
    CHECK(contains(ran.errors, folder.path()));
  }
  const Ran rest = run_command({"suggest", data_path("hang.jsonl"), none});
  CHECK(rest.code == 1);
  CHECK(contains(rest.errors, none));
  CHECK(contains(rest.output, "exchange"));
}

TEST_CASE("of a run folder it is the log that the last server has linked") {
  const TempFolder folder;
  const std::string log = folder.path("elsewhere.jsonl");
  std::filesystem::create_symlink(log, folder.path("log_link"));
  folder.write("expired.jsonl", "");  // of a server before it
  const Ran missing = run_command({"log", "--dir", folder.path()});
  CHECK(missing.code == 1);
  CHECK(missing.errors == "timer_client: cannot open '" + log +
                              "': No such file or directory (the log of the last server in '" +
                              folder.path() + "')\n");
  const std::string text = read_data("hang.jsonl");
  const std::size_t first_line = text.find('\n') + 1;
  folder.write("elsewhere.jsonl.1", text.substr(0, first_line));
  folder.write("elsewhere.jsonl", text.substr(first_line));
  CHECK(run_command({"log", "--json", "--dir", folder.path()}).output == text);
}

TEST_CASE("in the default place the log of other servers is read, too") {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path("filetimer"));
  ::unsetenv("FILETIMER_DIR");
  ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  ::setenv("XDG_STATE_HOME", folder.path("state").c_str(), 1);
  const auto place = default_log_path(resolve_run_folder(""));
  REQUIRE(place);
  std::filesystem::create_symlink(data_path("hang.jsonl"), folder.path("filetimer/log_link"));
  const Ran alone = run_command({"log", "--json"});
  std::filesystem::create_directories(folder.path("state/filetimer"));
  testing::write_file(*place, R"({"schema":1,"event":"rejected","time":"2027-01-01T00:00:00Z"})"
                              "\n");
  const Ran both = run_command({"log", "--json"});
  ::unsetenv("XDG_RUNTIME_DIR");
  ::unsetenv("XDG_STATE_HOME");
  CHECK(alone.code == 0);
  CHECK(alone.output == read_data("hang.jsonl"));
  CHECK(both.code == 0);
  CHECK(both.output == read_data("hang.jsonl") + testing::read_file(*place));
}

TEST_CASE("no escape sequence of a record comes through, and no line is wider than 80") {
  for (const char* file : {"escapes.jsonl", "foreign.jsonl", "hang.jsonl"}) {
    for (const std::string& line : lines_of(log_of(file).output)) {
      CAPTURE(line);
      CHECK(utf8_length(line) <= 80);
      CHECK(printable(line) == line);
    }
  }
}

TEST_CASE("a reader that went away ends the output quietly, a full disk does not") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::close(ends[0]);
  Output out(ends[1]);
  CHECK(out.is_closed());
  CHECK(out.write("x"));
  CHECK_FALSE(out.flush());
  CHECK(out.finish() == 0);
  ::close(ends[1]);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  Output to_full(full);
  to_full.write("x");
  CHECK(to_full.finish() == 1);
  ::close(full);
}

}  // namespace
}  // namespace filetimer::cli
