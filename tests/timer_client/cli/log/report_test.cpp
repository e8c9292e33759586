// Records as their writers may make them, and what `show` and `log` make of each: fields that only
// some servers write, and events and fields that nobody knows yet.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"

namespace filetimer::cli {
namespace {

// A record `ms` after the verdict, of the worker that all of these are about.
std::string record(const std::string& event, std::int64_t ms, const std::string& fields) {
  const std::int64_t at = 50'000 + ms;
  return fmt::format(
      R"({{"schema":1,"event":"{}","time":"2026-11-21T03:15:{:02}.{:03}Z","mono_ns":{},)"
      R"("host":"node07","pid":4711,"start_time":1185022,"comm":"trainer","rank":2,{}}})"
      "\n",
      event, at / 1000, at % 1000, 12'000'000'000'000 + ms * 1'000'000, fields);
}

std::string verdict() {
  return record("expired", 0,
                R"("id":"a-1","incident":"a-i1","scope":"load","timeout_s":30,"elapsed_s":30.0)");
}

std::string killed(const std::string& fields) {
  return record("killed", 20, R"("id":"a-1","incident":"a-i1","scope":"load",)" + fields);
}

const std::string kDead =
    R"("verdict":"dead","signals":[{"signal":9,"name":"SIGKILL","mono_ns":12000010000000,)"
    R"("pids":[4711]}],"dead_after_ms":2.0)";

// The page, without what stands before the line `from` and behind the empty line after it.
std::string part_of_page(const std::string& log, const std::string& from) {
  const TempFolder folder;
  folder.write("log", log);
  const Ran ran = run_command({"show", "a-1", folder.path("log")});
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  std::string part;
  bool here = false;
  for (const std::string& line : lines_of(ran.output)) {
    CHECK(utf8_length(line) <= 80);
    here = (here || line == from) && !line.empty();
    part += here ? line + "\n" : "";
  }
  return part;
}

std::string numbered(const std::string& before, int count, const std::string& after) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += fmt::format(R"({}"{}{}{}")", i == 0 ? "" : ",", before, i, after);
  }
  return all;
}

TEST_CASE("of long stacks the innermost frames are shown and the rest is counted") {
  const std::string log =
      verdict() + record("evidence", 2,
                         R"("id":"a-1","state":"S","threads":[{"tid":1,"stack":[)" +
                             numbered("k", 20, "+0x1/0x2") + R"(],"native_stack":[)" +
                             numbered("f", 40, "") + "]}]");
  const std::string part = part_of_page(log, "Threads");
  CHECK(part.find(" < k15 <") != std::string::npos);
  CHECK(part.find("... 4 more\n") != std::string::npos);
  CHECK(part.find("k16") == std::string::npos);
  CHECK(part.find("    f23\n    ... 16 more\n") != std::string::npos);
  CHECK(part.find("f24") == std::string::npos);
}

TEST_CASE("peers in the same place are one item, the smallest group first") {
  const auto peer = [](int pid, int rank, const std::string& evidence) {
    std::string text = record("peer_evidence", 2, evidence);
    text.replace(text.find("4711"), 4, std::to_string(pid));
    text.replace(text.find("\"rank\":2"), 8, fmt::format("\"rank\":{}", rank));
    return text;
  };
  const std::string waits = R"("incident":"a-i1","python_threads":[{"ident":"0x1","frames":[)" +
                            numbered("/t.py:9 in f", 7, "") +
                            R"(]}],"threads":[{"tid":1,"native_stack":["poll"]}])";
  const std::string log =
      verdict() + peer(21, 0, waits) + peer(22, 2, waits) +
      peer(23, 3, R"x("incident":"a-i1","threads":[{"tid":1,"native_stack":["read+0x1 (c)"]}])x") +
      peer(24, 4, R"("incident":"a-i1","missing":"there was no time for this worker")") +
      peer(25, 5, R"("incident":"a-i0","doing":"of another incident")");
  CHECK(part_of_page(log, "Peers (the most recent call first)") ==
        "Peers (the most recent call first)\n"
        "  rank 3\n"
        "    read (c)\n"
        "  rank 4, there was no time for this worker\n"
        "  ranks 0, 2\n"
        "    /t.py:9 in f0\n"
        "    /t.py:9 in f1\n"
        "    /t.py:9 in f2\n"
        "    /t.py:9 in f3\n"
        "    /t.py:9 in f4\n"
        "    ... 2 more in the report\n");
}

TEST_CASE("Python's threads are told by name, those in one place together") {
  const std::string log =
      verdict() + record("evidence", 2,
                         R"("id":"a-1","state":"S","python_threads":[)"
                         R"({"ident":"0x7f01","current":true,"frames":["train.py:12 in forward",)"
                         R"("train.py:40 in <module>"]},)"
                         R"({"ident":"0x7f02","name":"loader-0","frames":["queue.py:5 in get"]},)"
                         R"({"ident":"0x7f03","name":"loader-1","frames":["queue.py:5 in get"]}],)"
                         R"("python_threads_omitted":2)");
  CHECK(part_of_page(log, "Python stacks (the most recent call first)") ==
        "Python stacks (the most recent call first)\n"
        "  thread 0x7f01\n"
        "    train.py:12 in forward\n"
        "    train.py:40 in <module>\n"
        "  thread loader-0, loader-1\n"
        "    queue.py:5 in get\n"
        "  2 more threads did not fit into the record\n");
}

TEST_CASE("what was done is told in its order: warnings, deferrals, signals, hooks") {
  const std::string log =
      record("warned", -16'000, R"("scope":"load","reason":"x")") +
      record("warned", -15'000,
             R"("scope":"load","reason":"soft deadline","timeout_s":30,)"
             R"("elapsed_s":15.0,"doing":"running")") +
      record("deferred", -5'000, R"("scope":"load","reason":"stopped","given_s":4.0)") + verdict() +
      killed(kDead) + record("hook", 30, R"("id":"a-1","result":"exited","exit_status":3)");
  CHECK(part_of_page(log, "Timeline (times after the verdict)") ==
        "Timeline (times after the verdict)\n"
        "  -16 s   warned: x\n"
        "  -15 s   warned: 15 s of 30 s, soft deadline; it was running\n"
        "  -5 s    deferred: stopped, given 4 s\n"
        "  +10 ms  SIGKILL to 4711\n"
        "  +30 ms  hook: exit status 3\n");
}

TEST_CASE("scopes of one worker that expired together share what the first one's records say") {
  const std::string log =
      record("expired", 0,
             R"("id":"a-0","incident":"a-i1","scope":"outer","timeout_s":60,"elapsed_s":60.0,)"
             R"("open_scopes":[{"scope":"outer","elapsed_s":60,"timeout_s":60,"remaining_s":0},)"
             R"({"scope":"load","elapsed_s":30,"timeout_s":30,"remaining_s":0}])") +
      verdict() +
      record("evidence", 2, R"("id":"a-0","state":"S","state_name":"sleeping","wchan":"nap")");
  CHECK(part_of_page(log, "Open scopes of the worker") ==
        "Open scopes of the worker\n"
        "  `outer`  open for 60 s of 60 s, over its time\n"
        "  `load`   open for 30 s of 30 s, over its time\n");
  CHECK(part_of_page(log, "Evidence") ==
        "Evidence\n"
        "  state       S\n"
        "  state name  sleeping\n"
        "  wchan       nap\n");
}

TEST_CASE("warnings of another scope, worker or time are not told") {
  const std::string other_scope = record("warned", -15'000, R"("scope":"epoch","reason":"x")");
  const std::string before_it = record("warned", -31'000, R"("scope":"load","reason":"x")");
  std::string other_worker = record("deferred", -15'000, R"("scope":"load","reason":"x")");
  other_worker.replace(other_worker.find("4711"), 4, "4712");
  const std::string ours = verdict() + killed(kDead);
  const std::string heading = "Timeline (times after the verdict)";
  CHECK(part_of_page(other_scope + before_it + other_worker + ours, heading) ==
        part_of_page(ours, heading));
}

TEST_CASE("the page of a warning has its times as durations, and no clock's nanoseconds") {
  const std::string page = part_of_page(
      record("warned", 0,
             R"("id":"a-1","scope":"load","reason":"soft deadline","timeout_s":30,)"
             R"("elapsed_s":15.0,"soft_s":15,"overdue_ms":0.2,"acquired_mono_ns":11985000000000,)"
             R"("soft_mono_ns":12000000000000,"state":"S")"),
      "Warning");
  CHECK(contains(page, "\n  soft        15 s\n"));
  CHECK_FALSE(contains(page, "mono"));
}

TEST_CASE("the first sentence says whether a worker that was spared was signalled") {
  const auto sentence = [](const std::string& outcome) {
    const TempFolder folder;
    folder.write("log", verdict() + killed(outcome));
    const std::string page = run_command({"show", "a-1", folder.path("log")}).output;
    std::string text = page.substr(0, page.find("\n\n"));
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text.substr(text.find("30 s, ") + 6);
  };
  CHECK(sentence(R"("verdict":"spared","signals":[],"reason":"dry run")") ==
        "not signalled (dry run).");
  CHECK(sentence(R"("verdict":"spared","signals":[{"signal":38,"name":"signal 38",)"
                 R"("mono_ns":12000010000000,"pids":[4711]}],)"
                 R"("reason":"released within the grace period")") ==
        "sent signal 38, and spared (released within the grace period).");
}

TEST_CASE("events of later servers change nothing, their fields are shown") {
  const std::string ours = verdict() + killed(kDead);
  std::string later = verdict();
  later.replace(later.rfind('}'), 1, R"(,"later":{"a":[1,{"b":null}]},"doing":[1],"steps":7})");
  later += record("pardoned", 5, R"("id":"a-1","incident":"a-i1","scope":"load","by":"nobody")") +
           killed(kDead);
  for (const char* heading :
       {"Timeline (times after the verdict)", "Outcome", "Ranks at time of expiry"}) {
    CHECK(part_of_page(later, heading) == part_of_page(ours, heading));
  }
  CHECK(contains(part_of_page(later, "Expiry"), "\n  later       1, none\n"));
}

std::string command(const std::string& fields) {
  return record("evidence_command", 5, R"("id":"a-1","incident":"a-i1",)" + fields);
}

TEST_CASE("one phrase says how an evidence command ended") {
  struct Row {
    std::string fields;
    std::string how;
  };
  const std::vector<Row> rows = {
      {R"("result":"exited","duration_ms":2.876,"exit_status":3)", "exit status 3 after 2.88 ms"},
      {R"("result":"signalled","duration_ms":5.134,"signal":9,"name":"SIGKILL")",
       "ended by SIGKILL after 5.13 ms"},
      {R"("result":"timed_out","duration_ms":2000.07,"signal":9,"name":"SIGKILL",)"
       R"("reason":"it was killed after 2s, see --evidence-timeout")",
       "timed out after 2.00 s, killed with SIGKILL"},
      {R"("result":"timed_out","duration_ms":2000)", "timed out after 2 s, killed"},
      {R"("result":"timed_out","duration_ms":2000,"exit_status":0)",
       "timed out after 2 s, exit status 0"},
      {R"("result":"stopped","duration_ms":7,"signal":9,"name":"SIGKILL","reason":"the server stopped")",
       "stopped after 7 ms: the server stopped"},
      {R"("result":"failed","reason":"no more processes")",
       "could not be started: no more processes"}};
  for (const Row& row : rows) {
    CAPTURE(row.fields);
    const std::string heading = "Evidence command (" + row.how + ")";
    CHECK(part_of_page(verdict() + command(row.fields + R"(,"output":"","output_bytes":0)"),
                       heading) == heading + "\n  It wrote nothing.\n");
  }
}

TEST_CASE(
    "the page says what it leaves out of the output of the evidence command, and nothing else") {
  const std::string heading = "Evidence command (exit status 0)";
  const auto page = [&](const std::string& output, std::size_t bytes) {
    return part_of_page(
        verdict() + command(fmt::format(
                        R"("result":"exited","exit_status":0,"output":"{}","output_bytes":{})",
                        output, bytes)),
        heading);
  };
  const auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += fmt::format("line {}\\n", i);
    }
    return text;
  };
  CHECK(page(lines(40), 350).ends_with("  line 39\n"));
  CHECK(page(lines(41), 359)
            .ends_with("  line 39\n  ... the record has more: `timer_client show a-1 --json` with "
                       "the same logs.\n"));
  // One line that is longer than the record, and one of which each byte is four in the record.
  const std::string cut = page(std::string(65536, 'x'), 300000);
  CHECK(cut.size() < 10'000);
  CHECK(cut.ends_with(
      "x\n  ... the record has more: `timer_client show a-1 --json` with the same logs.\n"
      "  It wrote 300000 bytes, of which the record has the first 65536.\n"));
  CHECK(page(R"(\\xff\\xff)", 300000)
            .ends_with("  It wrote 300000 bytes, of which the record has the first 65536.\n"));
  CHECK(page(R"(\\xff\\xff)", 2) == heading + "\n  \\xff\\xff\n");
}

TEST_CASE("the table says of each event what there is to say") {
  struct Row {
    std::string record;
    const char* what;
  };
  const std::vector<Row> rows = {
      {record("expired", 0, R"("id":"a-1","scope":"load","timeout_s":30,"overdue_ms":0.3)"),
       "30 s, 300 us late"},
      {record("deferred", 0, R"("scope":"load","reason":"stopped","late_s":1.5,"given_s":4.0)"),
       "stopped, 1.50 s late, given 4 s"},
      {record("deferred", 0, R"("reason":"server woke late")"), "server woke late"},
      {record("warned", 0, R"("scope":"load","reason":"soft deadline")"), "soft deadline"},
      {record("hook", 0, R"("id":"a-1","result":"exited","exit_status":0)"), "exit status 0"},
      {record("hook", 0, R"("id":"a-1","result":"timed_out","signal":9,"name":"SIGKILL")"),
       "timed out, SIGKILL"},
      {record("left_open", 0, R"("scope":"load","timeout_s":30,"elapsed_s":2.5)"),
       "2.50 s of 30 s, worker ended"},
      {record("left_open", 0, R"("scope":"load","timeout_s":29.999812,"elapsed_s":2.5)"),
       "2.50 s of 30.0 s, worker ended"},
      {record("left_open", 0, R"("scope":"load","timeout_s":12.34,"elapsed_s":2.5)"),
       "2.50 s of 12.3 s, worker ended"},
      {record("released_late", 0, R"("id":"a-1","scope":"load","late_ms":3.0)"), "3 ms late"},
      {record("slow", 0,
              R"("scope":"forward","kind":"slower","median_s":0.1312,"others_median_s":0.1009)"),
       "131 ms, others 101 ms"},
      {record("slow", 0,
              R"("scope":"sync","kind":"waits_least","median_s":0.02,"others_median_s":0.05)"),
       "waits 20 ms, others 50 ms"},
      {record("pardoned", 0, R"("reason":"by nobody","name":"x")"), "x, by nobody"},
      {record("pardoned", 0, R"("by":"nobody")"), ""}};
  for (const Row& row : rows) {
    CAPTURE(row.record);
    const TempFolder folder;
    folder.write("log", row.record);
    const Ran ran = run_command({"log", folder.path("log")});
    CHECK(ran.code == 0);
    CHECK(ran.errors.empty());
    REQUIRE(lines_of(ran.output).size() == 2);
    const std::string line = lines_of(ran.output)[1];
    CHECK(line.ends_with(*row.what == '\0' ? "4711" : std::string("  ") + row.what));
  }
}

}  // namespace
}  // namespace filetimer::cli
