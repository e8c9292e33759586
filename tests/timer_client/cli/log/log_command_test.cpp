// `timer_client log`, `show` and `suggest`: which logs they read, and the bounds of what they
// print.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/page/timeouts_file.hpp"

namespace filetimer::cli {
namespace {

TEST_CASE("a log that is not there is a failure that names the path tried") {
  check_fails({"log", "/nonexistent/x.jsonl"}, 1,
              "cannot open '/nonexistent/x.jsonl': No such file or directory");
  CHECK(run_command({"log", "/nonexistent/\x1b[2J"}).errors ==
        "timer_client: cannot open '/nonexistent/\\x1b[2J': No such file or directory\n");
  const TempFolder folder;
  const Ran dir = run_command({"log", "--dir", folder.path()});
  CHECK(dir.code == 1);
  CHECK(dir.errors.find("'" + folder.path("expired.jsonl") + "'") != std::string::npos);
  const testing::Variable none("FILETIMER_DIR", nullptr);
  const testing::Variable runtime("XDG_RUNTIME_DIR", folder.path().c_str());
  const testing::Variable state("XDG_STATE_HOME", folder.path().c_str());
  const Ran defaulted = run_command({"log"});
  CHECK(defaulted.code == 1);
  CHECK(defaulted.errors.find("'" + folder.path() + "/filetimer/") != std::string::npos);
  CHECK(contains(defaulted.errors, "(the default place: no FILE, no --dir, no $FILETIMER_DIR)"));
  CHECK(run_command({"log", folder.path()}).errors ==
        "timer_client: no log (*.jsonl) in folder '" + folder.path() + "'\n");
  CHECK(run_command({"log", "--fifo", "/none", data_path("hang.jsonl")}).code == 0);
}

TEST_CASE("a dash is standard input, of a file or of a pipe") {
  const std::string text = read_data("hang.jsonl");
  const auto read = [&](bool is_pipe, std::vector<std::string> words) {
    const UniqueFd before(::dup(STDIN_FILENO));
    UniqueFd input(::open(data_path("hang.jsonl").c_str(), O_RDONLY | O_CLOEXEC));
    if (is_pipe) {
      testing::Ends pipe = testing::make_pipe();
      REQUIRE(std::ssize(text) < ::fcntl(pipe.write.get(), F_GETPIPE_SZ));
      REQUIRE(::write(pipe.write.get(), text.data(), text.size()) == std::ssize(text));
      input = std::move(pipe.read);
    }
    ::dup2(input.get(), STDIN_FILENO);
    words.emplace_back("-");
    const Ran ran = run_command(words);
    ::dup2(before.get(), STDIN_FILENO);
    CHECK(ran.code == 0);
    CHECK(contains(ran.errors, "no scope has a duration") == (words[0] == "suggest"));
    CHECK(lines_of(ran.errors).size() == (words[0] == "suggest" ? 1 : 0));
    return ran.output;
  };
  for (const bool is_pipe : {false, true}) {
    CAPTURE(is_pipe);
    CHECK(read(is_pipe, {"log", "--json"}) == text);
    const std::string page = run_command({"show", "last", data_path("hang.jsonl")}).output;
    CHECK(read(is_pipe, {"show"}) == page);
    CHECK(read(is_pipe, {"show", "last"}) == page);
    CHECK(contains(read(is_pipe, {"report", "-o", "-", "last"}), "<h1>rank 2 (pid 4711, trainer)"));
    CHECK(contains(read(is_pipe, {"suggest"}), "exchange"));
  }
}

TEST_CASE("a line for a pipe without a reader is lost, and ends no process") {
  CHECK(testing::in_child([] {
          testing::Ends pipe = testing::make_pipe();
          pipe.read.reset();
          const bool is_set = ::dup2(pipe.write.get(), STDERR_FILENO) == STDERR_FILENO &&
                              ::signal(SIGPIPE, SIG_DFL) != SIG_ERR;
          complain("lost");
          return is_set ? 7 : 1;
        }) == 7);
}

TEST_CASE("--scope takes the bytes of a name that is not UTF-8") {
  HostLog log("node07");
  log.add("warned", 1, R"(,"pid":1,"scope":"caf\\xe9")");
  const std::string whole(300, 'n');
  log.add("warned", 1, fmt::format(R"(,"pid":1,"scope":"{}")", bounded_scope_name(whole)));
  CHECK(contains(run_over(log, {"log", "--scope", "caf\xe9"}).output, "caf\\xe9"));
  CHECK(contains(run_over(log, {"log", "--scope", whole}).output, "nnn...~"));
}

TEST_CASE("suggest lists 4096 names of scopes, and reports that others are omitted") {
  std::string scopes = R"({"scope":"s","count":1})";
  for (int i = 1; i < 4096; ++i) {
    scopes += fmt::format(R"(,{{"scope":"s{}","count":1}})", i);
  }
  HostLog log("node07");
  log.add("worker_ended", 0, R"(,"pid":1,"scopes":[)" + scopes + "]");
  log.add("expired", 1, R"(,"pid":1,"id":"a-1","scope":"s")");
  for (const bool has_more : {false, true}) {
    if (has_more) {
      log.add("expired", 2, R"(,"pid":1,"id":"a-2","scope":"one more")");
      log.add("worker_ended", 3, R"(,"pid":1,"scopes":[{"scope":"another","count":1}])");
    }
    const Ran ran = run_over(log, {"suggest", "--format", "json"});
    CHECK(lines_of(ran.output).size() == 4096);
    CHECK(contains(ran.errors, "more than 4096 names of scopes: the others are omitted") ==
          has_more);
  }
}

TEST_CASE("suggest reports the names for which records of ended workers had no room") {
  HostLog log("node07");
  const std::string scopes = R"(,"pid":1,"scopes":[{"scope":"s","count":1}],"omitted":)";
  log.add("worker_ended", 0, scopes + "0");
  CHECK_FALSE(contains(run_over(log, {"suggest"}).errors, "no room"));
  log.add("worker_ended", 1, scopes + "2");
  log.add("worker_ended", 2, scopes + "3");
  CHECK(contains(run_over(log, {"suggest"}).errors, "had no room for 5 names: these are left out"));
}

TEST_CASE("a file of timeouts has room for all that suggest writes") {
  HostLog log("node07");
  for (int worker = 0; worker < 4; ++worker) {
    std::string scopes;
    for (int i = 0; i < 1024; ++i) {
      scopes += fmt::format(R"({}{{"scope":"{:x>255}","count":201,"longest_s":0.5,"first_s":0.5,)"
                            R"("histogram_ns":[[469762048,201]]}})",
                            i == 0 ? "" : ",", 1024 * worker + i);
    }
    log.add("worker_ended", worker, R"(,"pid":1,"scopes":[)" + scopes + "]");
  }
  const std::string file = run_over(log, {"suggest", "--format", "toml"}).output;
  CHECK(lines_of(file).size() == 1 + 5 * 4096);
  CHECK(file.size() <= kMaxTimeoutsFileBytes);
}

TEST_CASE("a timeout of today that is shorter than the suggestion is yellow") {
  const auto scope = [](const char* name, double timeout_s) {
    return fmt::format(R"({{"scope":"{}","count":201,"longest_s":0.5,"first_s":0.5,"timeout_s":{},)"
                       R"("histogram_ns":[[469762048,201]]}})",
                       name, timeout_s);
  };
  HostLog log("node07");
  log.add("worker_ended", 0,
          R"(,"pid":1,"scopes":[)" + scope("even", 1.5) + "," + scope("short", 1) + "]");
  const OnTerminal terminal;
  const std::string table = run_over(log, {"suggest"}).output;
  CHECK(contains(table, "^[1;33m1 s^[0m"));
  CHECK_FALSE(contains(table, "^[1;33m1.50 s"));
}

TEST_CASE("suggest prints what it can read, and nothing but the reason where it can read nothing") {
  const TempFolder folder;
  const std::string none = folder.path("none");
  const std::string empty = folder.path("");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"suggest", none},
                                                {"suggest", empty},
                                                {"suggest", "--dir", none},
                                                {"suggest", none, "--format", "toml"}}) {
    const Ran ran = run_command(words);
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
  check_fails({"log", "--dir", folder.path()}, 1,
              "cannot open '" + log +
                  "': No such file or directory (the log of the last server in '" + folder.path() +
                  "')");
  const std::string text = read_data("hang.jsonl");
  const std::size_t first_line = text.find('\n') + 1;
  folder.write("elsewhere.jsonl.1", text.substr(0, first_line));
  folder.write("elsewhere.jsonl", text.substr(first_line));
  CHECK(run_command({"log", "--json", "--dir", folder.path()}).output == text);
}

TEST_CASE("in the default place the log of other servers is read, too") {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path("filetimer"));
  const testing::Variable none("FILETIMER_DIR", nullptr);
  const testing::Variable runtime("XDG_RUNTIME_DIR", folder.path().c_str());
  const testing::Variable state("XDG_STATE_HOME", folder.path("state").c_str());
  const auto place = default_log_path(resolve_run_folder(""));
  REQUIRE(place);
  std::filesystem::create_symlink(data_path("hang.jsonl"), folder.path("filetimer/log_link"));
  const Ran alone = run_command({"log", "--json"});
  std::filesystem::create_directories(folder.path("state/filetimer"));
  testing::write_file(*place, R"({"schema":1,"event":"rejected","time":"2027-01-01T00:00:00Z"})"
                              "\n");
  const Ran both = run_command({"log", "--json"});
  // A server that was given the default directory by name has its log in it, and makes no link.
  std::filesystem::remove(folder.path("filetimer/log_link"));
  folder.write("filetimer/expired.jsonl", read_data("hang.jsonl"));
  const Ran named = run_command({"log", "--json"});
  CHECK(alone.code == 0);
  CHECK(alone.output == read_data("hang.jsonl"));
  CHECK(both.code == 0);
  CHECK(both.output == read_data("hang.jsonl") + testing::read_file(*place));
  CHECK(named.output == both.output);
}

TEST_CASE("a time of another zone than the one in the title has its zone behind it") {
  const TempFolder folder;
  folder.write("log", R"({"schema":1,"event":"rejected","time":"2026-11-21T03:00:00Z"})"
                      "\n"
                      R"({"schema":1,"event":"rejected","time":"2027-04-20T03:00:00Z"})"
                      "\n");
  ::setenv("TZ", "STD0DST,M3.2.0,M11.1.0", 1);
  ::tzset();
  const std::string table = run_command({"log", folder.path("log")}).output;
  ::setenv("TZ", "UTC0", 1);
  ::tzset();
  CAPTURE(table);
  const bool is_summer_now = contains(table, "TIME (DST)");
  CHECK(contains(table, is_summer_now ? "11-21 03:00:00 STD" : "04-20 04:00:00 DST"));
  CHECK(contains(table, is_summer_now ? "04-20 04:00:00  " : "11-21 03:00:00  "));
}

TEST_CASE("times are in UTC on request, and may be given as so long ago") {
  const TempFolder folder;
  constexpr const char* kRecord = R"({{"schema":1,"event":"rejected","time":"{}"}})"
                                  "\n";
  folder.write("log", fmt::format(kRecord, "2020-11-21T03:00:00Z") +
                          fmt::format(kRecord, rfc3339(ClockReading::now().wall_ns)));
  const auto table_of = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "log");
    words.push_back(folder.path("log"));
    ::setenv("TZ", "CET-1", 1);
    ::tzset();
    const std::string table = run_command(words).output;
    ::setenv("TZ", "UTC0", 1);
    ::tzset();
    return table;
  };
  const std::string local = table_of({});
  CHECK(local.starts_with("TIME (CET) "));
  CHECK(contains(local, "\n11-21 04:00:00 "));
  const std::string utc = table_of({"--utc"});
  CHECK(utc.starts_with("TIME (UTC) "));
  CHECK(contains(utc, "\n11-21 03:00:00 "));
  const std::string until = table_of({"--until", "1h", "--utc"});
  CHECK(lines_of(until).size() == 2);
  CHECK(contains(until, "\n11-21 03:00:00 "));
  const std::string since = table_of({"--since", "1h", "--utc"});
  CHECK(lines_of(since).size() == 2);
  CHECK(lines_of(since).back() == lines_of(utc).back());
}

TEST_CASE("a long scope name is whole in a pipe, and on a terminal the description has room") {
  HostLog log("node1");
  add_expiry(log, "a-1", "a-i1", {1, {}, {}, std::string(60, 's'), 1});
  const Ran piped = run_over(log, {"log"});
  CHECK(contains(piped.output, " " + std::string(60, 's') + "  a-1  timeout 30 s, "));
  const OnTerminal terminal;
  const Ran ran = run_over(log, {"log"});
  CAPTURE(ran.output);
  CHECK(contains(ran.output, "sss...  a-1  timeout 30 s, "));
}

TEST_CASE("the records of a pipe are printed as they come, below a header with room for them") {
  testing::Ends pipe = testing::make_pipe();
  const UniqueFd before(::dup(STDIN_FILENO));
  ::dup2(pipe.read.get(), STDIN_FILENO);
  Program program({"log", "-"});
  ::dup2(before.get(), STDIN_FILENO);
  CHECK(program.read_line() ==
        "TIME (UTC)      EVENT           HOST      RANK      PID  SCOPE     ID        WHAT\n");
  HostLog log("node07");
  log.add("rejected", 0, R"(,"reason":"the first")");
  REQUIRE(::write(pipe.write.get(), log.text().data(), log.text().size()) ==
          std::ssize(log.text()));
  CHECK(program.read_line() ==
        "11-21 03:00:00  rejected        node07                                       the first\n");
  pipe.write.reset();
  CHECK(program.exit_code() == 0);
}

TEST_CASE("--follow ends when its reader has gone, and reports a log that it cannot read once") {
  const TempFolder folder;
  HostLog log("node07");
  const auto record = [&](const std::string& id) {
    log.add("expired", 0, fmt::format(R"(,"pid":1,"id":"{}","scope":"s")", id));
    return lines_of(log.text()).back() + "\n";
  };
  const std::string first = record("a-1");
  folder.write("log", first);
  Program follow({"log", "--follow", folder.path("log"), "/proc/self/mem"});
  CHECK(follow.read_line() == "timer_client: cannot read '/proc/self/mem': Input/output error\n");
  CHECK(follow.read_line() ==
        "TIME (UTC)      EVENT           HOST      RANK      PID  SCOPE     ID        WHAT\n");
  CHECK(contains(follow.read_line(), "  a-1"));
  folder.append("log", first + record("a-2"));
  CHECK(contains(follow.read_line(), "  a-2"));
  folder.append("log", record("a-3"));
  CHECK(contains(follow.read_line(), "  a-3"));
  CHECK(follow.exit_code_without_reader() == 1);
  Program json({"log", "--follow", "--json", folder.path("log")});
  for (const char* const id : {"a-1", "a-2", "a-3", "a-4"}) {
    CHECK(contains(json.read_line(), id));
    folder.append("log", contains(id, "a-3") ? record("a-4") : "");
  }
}

TEST_CASE("a reader that went away ends the output quietly") {
  testing::Ends pipe = testing::make_pipe();
  pipe.read.reset();
  Output out(pipe.write.get());
  CHECK(out.is_closed());
  CHECK(out.write("x"));
  CHECK_FALSE(out.flush());
  CHECK(out.finish() == 0);
}

TEST_CASE("a terminal that another program left in non-blocking mode gets the whole output") {
  testing::Ends pipe = testing::make_pipe(O_NONBLOCK);
  std::size_t seen = 0;
  const std::string command = fmt::format("/proc/self/task/{}/stat", ::gettid());
  std::thread terminal([&] {
    CHECK(testing::wait_until([&] { return contains(testing::read_file(command), ") S "); }));
    pollfd waits{pipe.read.get(), POLLIN, 0};
    char bytes[4096];
    for (ssize_t count = 1; count != 0;) {
      ::poll(&waits, 1, -1);
      count = ::read(pipe.read.get(), bytes, sizeof bytes);
      seen += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
  });
  const std::string text(std::size_t{1} << 20, 'x');
  Output out(pipe.write.get());
  CHECK(out.write(text));
  CHECK(out.finish() == 0);
  pipe.write.reset();
  terminal.join();
  CHECK(seen == text.size());
}

TEST_CASE("a command whose output finds no room says so and fails") {
  for (const char* const command : {"log", "show", "show --json", "report -o -", "suggest"}) {
    CAPTURE(command);
    std::vector<std::string> words = split_words(command);
    words.push_back(data_path("hang.jsonl"));
    const Ran ran = run_command(words, "/dev/full");
    CHECK(ran.code == 1);
    CHECK(contains(ran.errors, "No space left on device"));
  }
}

TEST_CASE("without an id it is the cause of the last incident, of the logs that are named first") {
  const TempFolder folder;
  folder.write("expired.jsonl", read_data("hang.jsonl"));
  const std::string last = run_command({"show", "last", folder.path("expired.jsonl")}).output;
  CHECK(contains(last, "rank 2 (pid 4711, trainer) hung"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"show", folder.path()},
                                                {"show", folder.path("expired.jsonl")},
                                                {"show", "last", folder.path()},
                                                {"show", "--dir", folder.path()}}) {
    CAPTURE(words[1]);
    check_ran(run_command(words), 0, last);
  }
  for (const char* const command : {"show", "report"}) {
    check_fails({command, folder.path("no")}, 1,
                "cannot open '" + folder.path("no") + "': No such file or directory");
    for (const char* const word : {"no.jsonl", "no*", "no?"}) {
      CAPTURE(word);
      const Ran no_file = run_command({command, word});
      CHECK(no_file.code == 1);
      CHECK(no_file.errors.find("no expiry") == std::string::npos);
      CHECK(contains(no_file.errors, "'" + std::string(word) + "'"));
    }
  }
}

TEST_CASE("show cuts the output of an evidence command, a report has all of it") {
  const auto numbered = [](int lines) {
    std::string text;
    for (int i = 1; i <= lines; ++i) {
      text += fmt::format("line {}\\n", i);  // as JSON has it
    }
    return text;
  };
  const std::string more = "... the report and the record have more.";
  for (const auto& [output, is_cut] : {std::pair{numbered(40), false},
                                       {numbered(41), true},
                                       {std::string(8000, 'x'), false},
                                       {std::string(8001, 'x'), true}}) {
    HostLog log("node1");
    add_expiry(log, "a-1", "a-i1", {1, {}, {}, "s", 1});
    log.add("evidence_command", 32 * kSecondUs,
            fmt::format(R"(,"pid":1,"id":"a-1","incident":"a-i1","result":"exited",)"
                        R"("exit_status":0,"output":"{}")",
                        output));
    const std::string page = run_over(log, {"show", "a-1"}).output;
    CHECK(contains(page, more) == is_cut);
    CHECK(contains(page, "line 40\n") == output.starts_with("line"));
    CHECK_FALSE(contains(page, "line 41"));
    const std::string report = run_over(log, {"report", "a-1", "-o", "-"}).output;
    CHECK_FALSE(contains(report, more));
    CHECK(contains(report, "line 41") == output.ends_with("line 41\\n"));
  }
}

TEST_CASE("of the stacks of many workers a few branches are shown, the deepest below each other") {
  // Each of the first twenty ranks is in another call than all later ones, the others in ten calls.
  std::vector<MadeWorker> workers;
  std::string outer;
  HostLog log("node1");
  for (int rank = 0; rank < 33; ++rank) {
    workers.push_back({.pid = 100 + rank, .rank = rank, .job = "j", .scope = "s", .entered_s = 1});
    const int place = rank < 27 ? rank : 27 + (rank - 27) / 2;
    log.add("peer_evidence", 32 * kSecondUs,
            fmt::format(R"(,"pid":{},"incident":"a-i1","threads":[{{"native_stack":["w{}"{}]}}])",
                        100 + rank, place, outer));
    outer += rank < 20 ? R"(,"libc.so.6+0x12")" : "";
  }
  add_incident(log, 31, "a-i1", workers);
  add_expiry(log, "a-1", "a-i1", workers[0]);
  const std::string page = run_over(log, {"show", "a-1"}).output;
  CAPTURE(page);
  const std::string deep = "\n" + std::string(40, ' ');
  CHECK(contains(page, deep + "ranks 20-32" + deep + "  libc.so.6+0x12" + deep + "rank 20" + deep));
  CHECK(contains(page, deep + "rank 26" + deep + "  w26" + deep + "ranks 31, 32" + deep + "  w29" +
                           deep + "  and 4 more in 2 other places\n"));
}

TEST_CASE("nothing a record says moves the cursor, or makes a line of its page wider than 80") {
  for (const auto& [id, file] :
       {std::pair("k3f9a2-1", "hang.jsonl"), std::pair("esc-1", "escapes.jsonl"),
        std::pair("types-1", "foreign.jsonl")}) {
    for (const std::string& line : lines_of(run_command({"log", data_path(file)}).output)) {
      CHECK(printable(line) == line);
    }
    const Ran ran = run_command({"show", id, data_path(file)});
    CHECK(ran.code == 0);
    for (const std::string& line : lines_of(ran.output)) {
      CAPTURE(line);
      CHECK(printable(line) == line);
      CHECK(display_width(line) <= 80);
      CHECK_FALSE(line.ends_with(' '));
    }
  }
}

}  // namespace
}  // namespace filetimer::cli
