// `timer_client report` over logs of made-up hosts. What a browser shows: tests/browser.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

// Returns the page about the last expiry, from standard output.
std::string report_of(const HostLog& log) {
  const Ran ran = run_over(log, {"report", "-o", "-"});
  CHECK(ran.errors.empty());
  REQUIRE(ran.code == 0);
  CHECK(ran.output.starts_with("<!DOCTYPE html>"));  // and nothing else
  CHECK(ran.output.ends_with("</html>\n"));
  return ran.output;
}
// Returns that about an expiry of one of the workers.
std::string report_of(const std::vector<MadeWorker>& workers, std::size_t expired) {
  HostLog log("node01");
  add_incident(log, 90.0001, "a-i1", workers);
  add_expiry(log, "a-1", "a-i1", workers[expired]);
  return report_of(log);
}

// Ranks from `begin` to `end`, those of `odd` in `load` and the others in `exchange`.
std::vector<MadeWorker> ranks(int begin, int end, const std::function<bool(int)>& is_odd) {
  std::vector<MadeWorker> workers;
  for (int rank = begin; rank < end; ++rank) {
    workers.push_back({.pid = 1000 + rank,
                       .rank = rank,
                       .job = "8812",
                       .scope = is_odd(rank) ? "load" : "exchange",
                       .entered_s = is_odd(rank) ? 60.0 : 61.0});
  }
  return workers;
}

// The names of lanes from above, those of red lanes with a star.
std::vector<std::string> names_in(const std::string& html) {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(html)) {
    const std::string_view mark = "class=lane>";
    if (const std::size_t at = line.find(mark); at != std::string::npos) {
      const std::size_t begin = at + mark.size();
      names.push_back((line.starts_with("<g class=odd>") ? "*" : "") +
                      line.substr(begin, line.find('<', begin) - begin));
    }
  }
  return names;
}

TEST_CASE(
    "of many workers those in one scope share a lane, and the odd one to look at has its own") {
  const std::string html = report_of(ranks(0, 1024, [](int rank) { return rank == 17; }), 17);
  CHECK(names_in(html) == std::vector<std::string>{"*rank 17, odd, first", "ranks 0-16, 18-1023"});
  CHECK(contains(html, "<td>rank 1023 (pid 2023, t)</td>"));
  CHECK(html.size() < 500'000);
  CHECK(names_in(report_of(ranks(0, 100, [](int rank) { return rank < 12; }), 3)) ==
        std::vector<std::string>{"*rank 3, odd, first", "*ranks 0-2, 4-11", "ranks 12-99"});
  CHECK(names_in(report_of(ranks(0, 100, [](int rank) { return rank < 12; }), 99)) ==
        std::vector<std::string>{"*rank 0, odd", "*ranks 1-11", "rank 99, first", "ranks 12-98"});
}

TEST_CASE("of more lanes than a page draws it says so") {
  std::vector<MadeWorker> workers = ranks(0, 100, [](int rank) { return rank == 3; });
  for (MadeWorker& worker : workers) {
    worker.scope += std::to_string(worker.rank.value_or(0));
  }
  const std::vector<std::string> names = names_in(report_of(workers, 3));
  CHECK(names.size() == 72 + 1);
  CHECK(names.back() == "28 more lanes: see the table");
}

TEST_CASE("a shared lane names its workers, and says whose its bars and marks are") {
  const TempFolder folder;
  for (const int host : {0, 1}) {
    HostLog log(fmt::format("node{}", host));
    const auto workers = ranks(50 * host, 50 * host + 50, [](int rank) { return rank == 7; });
    const std::string id = fmt::format("{}-i1", host);
    add_incident(log, 91.0001, id, workers);
    for (const MadeWorker& worker : workers) {
      add_expiry(log, fmt::format("{}-{}", host, worker.pid), id, worker);
    }
    folder.write(fmt::format("{}.jsonl", host), log.text());
  }
  const std::string html = run_command({"report", folder.path(), "-o", "-"}).output;
  CHECK(names_in(html) ==
        std::vector<std::string>{"*rank 7, odd, first, node0", "ranks 0-6, 8-99"});
  CHECK(contains(html,
                 "ranks 0-6, 8-99: 99 workers; bars and marks are those of rank 0 (pid 1000, t) on "
                 "node0"));
}

TEST_CASE("an expired scope is drawn, however many others its worker has") {
  HostLog log("node01");
  std::string scopes;
  for (int i = 0; i < 70; ++i) {
    scopes += fmt::format(
        R"({}{{"pid":11,"rank":1,"comm":"t","scope":"s{}","elapsed_s":{},"timeout_s":{}}})",
        i > 0 ? "," : "", i, 100 - i, i == 69 ? 31 : 600);
  }
  log.add("incident", 90'000'000,
          R"(,"incident":"a-i1","workers":1,"open_scopes":[)" + scopes +
              R"(],"in_no_scope":[],"omitted":0)");
  log.add("expired", 90'000'000,
          R"(,"pid":11,"rank":1,"comm":"t","id":"a-1","incident":"a-i1","scope":"s69",)"
          R"("elapsed_s":31,"timeout_s":31)");
  const std::string html = report_of(log);
  CHECK(contains(html, ">s69 31 s of 31 s</text>"));
  CHECK(contains(html, "<title>38 more scopes not drawn</title>+38</text>"));
}

TEST_CASE("a kill that takes minutes is in the report of another expiry near it") {
  HostLog log("node01");
  const std::vector<MadeWorker> workers = ranks(0, 2, [](int) { return false; });
  add_expiry(log, "a-1", "a-i1", workers[0]);
  add_expiry(log, "a-2", "a-i1", workers[1]);
  log.add("killed", 400 * kSecondUs,
          fields_of(workers[1]) + R"(,"id":"a-2","verdict":"dead","dead_after_ms":300000)");
  CHECK(contains(report_of(log), "dead after 300 s"));
}

TEST_CASE("names of any bytes are text in a report") {
  HostLog log("node01");
  const std::string name = R"(<script>alert(1)</script>\"'\u202e)";
  const std::string who = R"("pid":11,"rank":1,"comm":"<b>","scope":")" + name + "\"";
  log.add("incident", 90'000'100,
          R"(,"incident":"a-i1","workers":1,"open_scopes":[{)" + who +
              R"(,"elapsed_s":30,"timeout_s":30}],"in_no_scope":[],"omitted":0)");
  log.add("expired", 90'000'200,
          "," + who + R"(,"id":"a-1","incident":"a-i1","elapsed_s":30,"timeout_s":30,"cmdline":")" +
              std::string(65536, '<') + "\"");
  const std::string html = report_of(log);
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "<b>"));
  CHECK_FALSE(contains(html, "\xE2\x80\xAE"));
  CHECK(contains(html, "&lt;script&gt;alert(1)"));
}

TEST_CASE("long names are cut in a report") {
  HostLog log("node01");
  log.add("expired", 90'000'000,
          fmt::format(R"(,"pid":11,"comm":"{}","id":"a-1","scope":"{}","elapsed_s":1)",
                      std::string(500, 'c'), std::string(2000, 's')));
  const std::string html = report_of(log);
  const auto cut = [](std::string text, std::size_t characters) {
    text.resize(characters, text.back());
    return text + "...";
  };
  CHECK(contains(html, "class=lane>" + cut("pid 11 (c", 28) + "</text>"));
  CHECK(contains(html, "<g class=odd><title>" + cut("pid 11 (c", 400) + "</title>"));
  CHECK(contains(html, "<g class=expired><title>" + cut("s", 400) + ": 1 s"));
  CHECK(contains(html, "<tr><td>" + cut("pid 11 (c", 200) + "</td>"));
  CHECK(contains(html, "<td>" + cut("+0.000 s expired in `s", 600) + "</td>"));
  CHECK(html.find("</title>") - html.find("<title>") == 7 + 200 + 3);
  CHECK(html.find("</h1>") - html.find("<h1>") == 4 + 1000 + 3);
}

TEST_CASE("bars that overlap are below each other, and pale where no record says so") {
  HostLog log("node01");
  log.add("deferred", 40'000'000);
  log.add("incident", 90'000'100,
          R"(,"incident":"a-i1","workers":2,"open_scopes":[)"
          R"({"pid":11,"rank":1,"comm":"t","scope":"epoch","elapsed_s":7200,"timeout_s":null},)"
          R"({"pid":11,"rank":1,"comm":"t","scope":"load","elapsed_s":27.0001,"timeout_s":27},)"
          R"({"pid":12,"rank":2,"comm":"t","scope":"exchange","elapsed_s":29,"timeout_s":30}],)"
          R"("ended_scopes":[{"pid":11,"scope":"old","ended":[[100,1]]},)"
          R"({"pid":11,"scope":"tiny","ended":[[10,0.001]]},)"
          R"({"pid":12,"scope":"a","ended":[[40,4],[39,1]]},)"
          R"({"pid":12,"scope":"bb","ended":[[38,4],[34,4],[30,8]]}])");
  add_expiry(log, "a-1", "a-i1",
             {.pid = 11, .rank = 1, .job = "", .scope = "load", .entered_s = 63, .timeout_s = 27});
  log.add("evidence", 90'050'000, R"(,"pid":11,"id":"a-1")");
  log.add("killed", 90'100'000,
          fmt::format(R"(,"pid":11,"id":"a-1","verdict":"dead","dead_after_ms":2.5,)"
                      R"("signals":[{{"name":"SIGKILL","mono_ns":{}}}])",
                      log.mono_ns(90'060'000)));
  log.add("worker_ended", 120'000'100, R"(,"pid":12)");
  const std::string html = report_of(log);
  for (const char* const part :
       {R"(viewBox="0 0 1200 134")",
        R"(<rect x=190 y=86.0 width=1010 height=32.0 class="ground" />)",
        R"(<rect x=735.4 y=24 width=464.6 height=110 class=after />)",
        R"(<text x=196.7 y=18 class="axis leftmost">-40 s</text>)",
        R"(<rect x=190.00 y=31.0 width=545.40 height=14 rx=2 /><rect x=735.40 y=31.0 width=1.50 )",
        R"( class=unknown /><text x=193.00 y=42.0>epoch 2 h, no deadline</text></g>)",
        R"(<rect x=371.80 y=47.0 width=364.44 height=14 rx=2 /><text x=374.80 y=58.0>load 27.0 )",
        R"(<rect x=600.72 y=63.0 width=1.50 height=14 rx=2 /></g>)",
        R"(<text x=736.07 y=58.0 class="mark note">)",
        R"(<text x=4 y=98.0 class=lane>rank 2</text>)",
        R"(a: 4 s, from -44.000 s to -40.000 s</title><rect x=190.00 y=87.0 width=6.74 )",
        R"(<rect x=190.00 y=103.0 width=33.67 height=14 rx=2 /><text x=193.00 y=114.0>bb</text>)",
        R"(<rect x=196.74 y=87.0 width=13.47 height=14 rx=2 /><text x=199.74 y=98.0>a</text>)",
        R"(<rect x=223.67 y=87.0 width=107.73 height=14 rx=2 /><text x=226.67 y=98.0>bb</text>)",
        R"(<rect x=223.67 y=103.0 width=53.87 height=14 rx=2 /><text x=226.67 y=114.0>bb</text>)",
        R"(y=87.0 width=390.53 height=14 rx=2 /><rect x=735.40 y=87.0 width=404.00 )",
        R"(<text x=1139.40 y=106.0 class="mark death"><title>ended (+30.000 s)</title>)"}) {
    CAPTURE(part);
    CHECK(contains(html, part));
  }
  CHECK_FALSE(contains(html, "old: "));        // it ended before the axis begins
  CHECK_FALSE(contains(html, "(-50.000 s)"));  // likewise
}

TEST_CASE("the first word is an id unless a file has that name, and a report replaces no log") {
  const Ran unknown = run_command({"report", "zz", data_path("hang.jsonl")});
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.errors, "no expiry 'zz'"));
  const TempFolder folder;
  folder.write("x", std::string(1'000'000, 'y'));
  CHECK(run_command({"report", data_path("hang.jsonl"), "-o", folder.path("x")}).code == 0);
  CHECK(testing::read_file(folder.path("x")).ends_with("</html>\n"));
  check_fails({"report", data_path("hang.jsonl"), "-o", folder.path("no/x")}, 1,
              "cannot write '" + folder.path("no/x") + "': No such file or directory");
  check_fails({"report", data_path("hang.jsonl"), "-o", "/dev/full"}, 1,
              "cannot write to '/dev/full': No space left on device");
  CHECK(run_command({"report", data_path("hang.jsonl"), "-o", ""}).code == -1);
  const std::string log = read_data("hang.jsonl");
  folder.write("a.log", log);
  check_fails(
      {"report", data_path("hang.jsonl"), "-o", folder.path("a.log")}, 2,
      "report: '" + folder.path("a.log") + "': expected a file to write, and this is a log");
  CHECK(testing::read_file(folder.path("a.log")) == log);
}

TEST_CASE("a report without a name is in the current folder, whatever the id is") {
  const TempFolder folder;
  HostLog log("node01");
  log.add("expired", 90'000'000,
          R"(,"pid":11,"id":"../x\u0000 )" + std::string(5000, 'y') + R"(","scope":"load")");
  folder.write("log", log.text());
  folder.write("last", "no record");
  const std::string command =
      "cd '" + folder.path() + "' && '" TIMER_CLIENT_PROGRAM "' report last log >out 2>&1";
  CHECK(std::system(command.c_str()) == 0);
  const std::string name = testing::read_file(folder.path("out"));
  CHECK(name.starts_with("hang-___x__yyy"));
  CHECK(name.size() == std::string_view("hang-.html\n").size() + 100);
  CHECK(testing::read_file(folder.path(name.substr(0, name.size() - 1)))
            .starts_with("<!DOCTYPE html>"));
}

TEST_CASE("a report has nothing but its page where standard output is closed") {
  const TempFolder folder;
  const std::string command = "'" TIMER_CLIENT_PROGRAM "' report last '" + data_path("hang.jsonl") +
                              "' -o '" + folder.path("html") + "' >&- 2>'" + folder.path("errors") +
                              "'";
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 1);
  CHECK(testing::read_file(folder.path("html")).ends_with("</html>\n"));
  CHECK(contains(testing::read_file(folder.path("errors")), "cannot write to standard output"));
}

TEST_CASE("a report without a name writes through no link") {
  const TempFolder folder;
  HostLog log("node01");
  log.add("expired", 90'000'000, R"(,"pid":11,"id":"a-1","scope":"load")");
  folder.write("log", log.text());
  folder.write("precious", "text");
  REQUIRE(::symlink("precious", folder.path("hang-a-1.html").c_str()) == 0);
  const std::string report = "cd '" + folder.path() + "' && '" TIMER_CLIENT_PROGRAM "' report log";
  CHECK(WEXITSTATUS(std::system((report + " 2>out").c_str())) == 1);
  CHECK(testing::read_file(folder.path("out")) ==
        "timer_client: cannot write 'hang-a-1.html': Too many levels of symbolic links\n");
  CHECK(testing::read_file(folder.path("precious")) == "text");
  CHECK(std::system((report + " -o hang-a-1.html >out").c_str()) == 0);
  CHECK(testing::read_file(folder.path("precious")).starts_with("<!DOCTYPE html>"));
}

}  // namespace
}  // namespace filetimer::cli
