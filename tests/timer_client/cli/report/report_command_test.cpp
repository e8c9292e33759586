// `timer_client report` over logs of made-up hosts. What a browser shows: tests/browser.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <simdjson.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/json_fields.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

struct Event {
  std::string name;
  std::string phase;
  double at_s = 0;  // after the first verdict
  double took_s = 0;
  bool is_expired = false;
  std::int64_t pid = 0;
  std::int64_t host = 0;
};

std::vector<Event> events_in(const std::string& path) {
  dom::parser parser;
  const simdjson::padded_string text{testing::read_file(path)};
  dom::object root;
  REQUIRE(parser.parse(text).get_object().get(root) == simdjson::SUCCESS);
  std::vector<Event> events;
  for (const dom::object each : objects_at(root, "traceEvents")) {
    Event event{text_at(each, "name"),
                text_at(each, "ph"),
                number_at(each, "ts").value_or(0) / 1e6 - 3600,
                number_at(each, "dur").value_or(0) / 1e6,
                false,
                integer_at(each, "tid").value_or(0),
                integer_at(each, "pid").value_or(0)};
    dom::object args;
    bool is_expired = false;
    if (each.at_key("args").get_object().get(args) == simdjson::SUCCESS) {
      event.is_expired = args.at_key("expired").get(is_expired) == simdjson::SUCCESS && is_expired;
    }
    events.push_back(std::move(event));
  }
  return events;
}

std::vector<Event> of_worker(const std::vector<Event>& events, std::int64_t pid,
                             std::string_view phase) {
  std::vector<Event> found;
  for (const Event& event : events) {
    if (event.pid == pid && event.phase == phase) {
      found.push_back(event);
    }
  }
  return found;
}

// Viewers drop a scope that overlaps another one of its track without being inside it.
std::size_t dropped_in(const std::vector<Event>& events) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> open_ends;
  std::size_t dropped = 0;
  for (const Event& event : events) {
    if (event.phase != "X") {
      continue;
    }
    const auto ns = [](double seconds) { return std::llround((seconds + 3600) * 1e9); };
    const std::int64_t begin = ns(event.at_s);
    const std::int64_t end = begin + std::llround(event.took_s * 1e9);
    std::vector<std::int64_t>& ends = open_ends[{event.host, event.pid}];
    while (!ends.empty() && ends.back() <= begin) {
      ends.pop_back();
    }
    dropped += !ends.empty() && end > ends.back() ? 1U : 0U;
    ends.push_back(end);
  }
  return dropped;
}

// One host with what a test adds to its log.
struct OneHost {
  TempFolder folder;
  HostLog log{"node01"};
  std::string html;
  std::vector<Event> events;

  void report() {
    folder.write("log", log.text());
    const Ran ran = run_command({"report", folder.path("log"), "-o", folder.path("hang.html"),
                                 "--perfetto", folder.path("hang.json")});
    CHECK(ran.errors.empty());
    REQUIRE(ran.code == 0);
    html = testing::read_file(folder.path("hang.html"));
    events = events_in(folder.path("hang.json"));
  }
};

// A job on two hosts: rank 1 hangs in `load`, and ranks 0, 2 and 3 wait in `exchange`.
struct TwoHosts {
  TempFolder folder;
  HostLog a{"node01"};
  HostLog b{"node02", 40'000};

  TwoHosts() {
    const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
    const std::vector<MadeWorker> on_a{
        {.pid = 10, .rank = 0, .job = "8812", .scope = "exchange", .entered_s = 61}, hung};
    const std::vector<MadeWorker> on_b{
        {.pid = 12, .rank = 2, .job = "8812", .scope = "exchange", .entered_s = 61},
        {.pid = 13, .rank = 3, .job = "8812", .scope = "exchange", .entered_s = 61}};
    add_incident(a, 90.0001, "a-i1", on_a);
    add_expiry(a, "a-1", "a-i1", hung);
    a.add(
        "evidence", 90'050'000,
        R"x(,"pid":11,"id":"a-1","threads":[{"tid":11,"native_stack":)x"
        R"x(["read+0xd (libc.so.6)","main+0x1 (t)"]}],"children":[)x"
        R"x({"pid":21,"comm":"loader","native_stack":["read+0xd (libc.so.6)","<main>+0x1 (t)"]},)x"
        R"x({"pid":22,"comm":"loader","doing":"waits in read"},{"pid":23,"comm":"new"}])x");
    a.add("killed", 90'100'000,
          fmt::format(R"(,"pid":11,"id":"a-1","incident":"a-i1","scope":"load","verdict":"dead",)"
                      R"("signals":[{{"signal":9,"name":"SIGKILL","mono_ns":{}}}],)"
                      R"("dead_after_ms":2.5)",
                      a.mono_ns(90'060'000)));
    add_incident(b, 91.0001, "b-i1", on_b);
    for (std::size_t i = 0; i < on_b.size(); ++i) {
      add_expiry(b, fmt::format("b-{}", i + 1), "b-i1", on_b[i]);
    }
  }
  Ran report(std::vector<std::string> words = {}) {
    folder.write("node01.jsonl", a.text());
    folder.write("node02.jsonl", b.text());
    std::vector<std::string> all{"report",
                                 "last",
                                 folder.path(),
                                 "-o",
                                 folder.path("hang.html"),
                                 "--perfetto",
                                 folder.path("hang.json")};
    all.insert(all.end(), words.begin(), words.end());
    return run_command(all);
  }
  [[nodiscard]] std::string html() const { return testing::read_file(folder.path("hang.html")); }
};

TEST_CASE("a report is told from the first to expire, whichever expiry was named") {
  TwoHosts hosts;
  const Ran ran = hosts.report();
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  CHECK(ran.output == hosts.folder.path("hang.html") + "\n");
  const std::string html = hosts.html();
  CHECK(contains(html,
                 "<h1>rank 1 (pid 11, t) hung in `load`: open for 30.0 s of 30 s, killed with "
                 "SIGKILL, dead after 2.50 ms.</h1>"));
  CHECK(contains(html, "The odd one out: rank 1 on node01, in `load`.") !=
        contains(html, "The odd one out: rank 1, in `load`."));
  CHECK(contains(html, "<dt>Job</dt><dd><bdi>8812</bdi></dd>"));
  CHECK(contains(html, "ranks 0, 2, 3 <bdi>in `exchange`</bdi>"));
  CHECK(contains(html,
                 "<code>main (t)</code><br><code>read (libc.so.6)</code> "
                 "<strong class=odd>rank 1</strong>"));
}

// Ranks 0 and 1 on node01, 2 and 3 on node02: all wait in `exchange` for rank 3, in `load`.
struct FirstWaited {
  TempFolder folder;
  HostLog a{"node01"};
  HostLog b{"node02"};

  explicit FirstWaited(bool has_odd = true) {
    const auto in = [&](int rank, double entered_s) {
      const bool is_odd = rank == 3 && has_odd;
      return MadeWorker{.pid = 10 + rank,
                        .rank = rank,
                        .job = "8812",
                        .scope = is_odd ? "load" : "exchange",
                        .entered_s = entered_s,
                        .timeout_s = is_odd ? 31.0 : 30.0};
    };
    const std::vector<MadeWorker> on_a{in(0, 60.3), in(1, 60.2)};
    const std::vector<MadeWorker> on_b{in(2, 60.3), in(3, 60)};
    add_incident(a, 90.2001, "a-i1", on_a);
    add_expiry(a, "a-1", "a-i1", on_a[1]);
    add_expiry(a, "a-2", "a-i1", on_a[0]);
    add_incident(b, 90.3001, "b-i1", on_b);
    add_expiry(b, "b-1", "b-i1", on_b[0]);
    add_expiry(b, "b-2", "b-i1", on_b[1]);
    folder.write("node01.jsonl", a.text());
    folder.write("node02.jsonl", b.text());
  }
  [[nodiscard]] std::string html(const std::string& id = "last") const {
    REQUIRE(run_command({"report", id, folder.path(), "-o", folder.path("hang.html")}).code == 0);
    return testing::read_file(folder.path("hang.html"));
  }
};

// The names of hosts and lanes from above, those of red lanes with a star.
std::vector<std::string> names_in(const std::string& html) {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(html)) {
    for (const std::string_view mark : {"class=host>", "class=lane>"}) {
      if (const std::size_t at = line.find(mark); at != std::string::npos) {
        const std::size_t begin = at + mark.size();
        names.push_back((line.starts_with("<g class=odd>") ? "*" : "") +
                        line.substr(begin, line.find_first_of("<", begin) - begin));
      }
    }
  }
  return names;
}

TEST_CASE("a report is told from the odd one out, though one that waited for it expired first") {
  const FirstWaited hosts;
  for (const char* const id : {"last", "a-1", "a-2", "b-1"}) {
    CAPTURE(id);
    const std::string html = hosts.html(id);
    CHECK(contains(html, "<title>rank 3 (pid 13, t) hung in `load`: "));
    CHECK(contains(html, "<h1>rank 3 (pid 13, t) hung in `load`: open for 31.0 s of 31 s"));
    CHECK(contains(
        html,
        "<p><strong>The odd one out: rank 3, in `load`. rank 1 (pid 11, t) on node01 "
        "expired first, in `exchange`, and may have waited for it. 3 other workers were in "
        "`exchange`.</strong></p>"));
    CHECK(contains(html, "<dt>Expiry</dt><dd><bdi>b-2</bdi></dd>"));
  }
}

TEST_CASE("a report says how an evidence command ended, and what its record has not") {
  TwoHosts hosts;
  const auto add = [](HostLog& log, const std::string& incident, const std::string& fields) {
    log.add("evidence_command", 90'040'000,
            fmt::format(R"(,"pid":11,"incident":"{}",{})", incident, fields));
  };
  add(hosts.a, "a-i1",
      R"("result":"timed_out","duration_ms":2000,"signal":9,"name":"SIGKILL",)"
      R"("output":"<a>\n","output_bytes":5874892584)");
  add(hosts.b, "b-i1",
      R"("result":"exited","duration_ms":4,"exit_status":3,"output":"","output_bytes":0)");
  REQUIRE(hosts.report().code == 0);
  const std::string html = hosts.html();
  CHECK(contains(html,
                 "<h2>Evidence command on node01: timed out after 2 s, killed with SIGKILL</h2>"
                 "\n<pre>&lt;a&gt;\n</pre>\n<p class=soft>It wrote "
                 "5874892584 bytes, of which the record has the first 65536.</p>\n"));
  CHECK(contains(html,
                 "<h2>Evidence command on node02: exit status 3 after 4 ms</h2>\n"
                 "<p class=soft>It wrote nothing.</p>\n"));
  CHECK_FALSE(contains(html, "<pre></pre>"));
}

TEST_CASE("a report has what concerns its incident, and nothing of another one nearby") {
  TwoHosts hosts;
  // A minute before, rank 1 was warned, and had expired under --dry-run with a verdict of its own.
  const MadeWorker before{.pid = 11, .rank = 1, .job = "8812", .scope = "epoch", .entered_s = 0};
  HostLog a("node01");
  add_incident(a, 30.0001, "a-i0", {before});
  add_expiry(a, "a-0", "a-i0", before);
  a.add("killed", 30'100'000,
        fmt::format(R"(,"pid":11,"id":"a-0","incident":"a-i0","scope":"epoch","verdict":"none",)"
                    R"("signals":[{{"signal":15,"name":"SIGTERM","mono_ns":{}}}])",
                    a.mono_ns(30'060'000)));
  hosts.folder.write("before.jsonl", a.text());
  REQUIRE(hosts.report().code == 0);
  const auto events = events_in(hosts.folder.path("hang.json"));
  const auto bars = of_worker(events, 11, "X");
  REQUIRE(bars.size() == 1);
  CHECK(bars[0].name == "load");
  CHECK(of_worker(events, 11, "i").size() == 4);  // verdict, evidence, SIGKILL, death
}

TEST_CASE("the verdict of a report is at its own time, however late its record was made") {
  const TempFolder folder;
  HostLog log("node01");
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  add_incident(log, 90.0001, "a-i1", {hung});
  log.add("expired", 92'000'000,
          fmt::format(R"(,"pid":11,"rank":1,"comm":"t","job_id":"8812","id":"a-1",)"
                      R"("incident":"a-i1","scope":"load","elapsed_s":30.5,"timeout_s":30,)"
                      R"("overdue_ms":500,"deadline_mono_ns":{})",
                      log.mono_ns(90'000'000)));
  folder.write("log", log.text());
  REQUIRE(run_command({"report", folder.path("log"), "-o", folder.path("hang.html"), "--perfetto",
                       folder.path("hang.json")})
              .code == 0);
  const auto events = events_in(folder.path("hang.json"));
  const auto marks = of_worker(events, 11, "i");
  const auto bars = of_worker(events, 11, "X");
  REQUIRE(marks.size() == 1);
  REQUIRE(bars.size() == 1);
  CHECK(marks[0].at_s - bars[0].at_s == doctest::Approx(30.5).epsilon(1e-6));
  CHECK(marks[0].at_s < 0.6);  // and not at 2, where the record is
}

TEST_CASE("a late release ends the bar of its scope alone") {
  TwoHosts hosts;
  hosts.a = HostLog("node01");
  const MadeWorker hung{
      .pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60, .step_s = 59};
  add_incident(hosts.a, 90.0001, "a-i1", {hung});
  add_expiry(hosts.a, "a-1", "a-i1", hung);
  hosts.a.add("released_late", 90'500'000,
              R"(,"pid":11,"id":"a-1","incident":"a-i1","scope":"load","late_ms":500)");
  hosts.a.add("hook", 95'000'000, R"(,"pid":11,"id":"a-1","result":"exited","exit_status":0)");
  REQUIRE(hosts.report().code == 0);
  const auto bars = of_worker(events_in(hosts.folder.path("hang.json")), 11, "X");
  REQUIRE(bars.size() == 2);
  CHECK(bars[0].name == "step");
  CHECK(bars[0].at_s + bars[0].took_s > 5);
  CHECK(bars[1].name == "load");
  CHECK(bars[1].at_s + bars[1].took_s == doctest::Approx(0.5).epsilon(1e-3));
  const std::string html = hosts.html();
  const std::size_t mark = html.find("released late: ");
  REQUIRE(mark != std::string::npos);
  CHECK(html.find("</title><circle ", mark) == html.find("</title>", mark));
}

TEST_CASE("of many workers those in one scope share a lane, and the odd one has its own") {
  const TempFolder folder;
  HostLog log("node01");
  std::vector<MadeWorker> workers;
  for (int rank = 0; rank < 1024; ++rank) {
    workers.push_back({.pid = 1000 + rank,
                       .rank = rank,
                       .job = "8812",
                       .scope = rank == 17 ? "load" : "exchange",
                       .entered_s = rank == 17 ? 60.0 : 61.0});
  }
  add_incident(log, 90.0001, "a-i1", workers);
  add_expiry(log, "a-1", "a-i1", workers[17]);
  folder.write("log", log.text());
  REQUIRE(run_command({"report", folder.path("log"), "-o", folder.path("hang.html")}).code == 0);
  const std::string html = testing::read_file(folder.path("hang.html"));
  CHECK(names_in(html) == std::vector<std::string>{"node01", "*rank 17", "ranks 0-16, 18-1023"});
  CHECK(contains(html, "class=lane>rank 17</text>"));
  CHECK(contains(html, "class=lane>ranks 0-16, 18-1023</text>"));
  CHECK_FALSE(contains(html, "class=lane>rank 18</text>"));
  CHECK(contains(html, "<summary>1024 workers</summary>"));
  CHECK(html.size() < 500'000);
}

TEST_CASE("each of the odd ones has a lane of its own, though they are many") {
  const TempFolder folder;
  HostLog log("node01");
  std::vector<MadeWorker> workers;
  for (int rank = 0; rank < 100; ++rank) {
    workers.push_back({.pid = 1000 + rank,
                       .rank = rank,
                       .job = "8812",
                       .scope = rank < 12 ? "load" : "exchange",
                       .entered_s = rank < 12 ? 60.0 : 61.0});
  }
  add_incident(log, 90.0001, "a-i1", workers);
  add_expiry(log, "a-1", "a-i1", workers[3]);
  folder.write("log", log.text());
  REQUIRE(run_command({"report", folder.path("log"), "-o", folder.path("hang.html")}).code == 0);
  const std::string html = testing::read_file(folder.path("hang.html"));
  for (int rank = 0; rank < 12; ++rank) {
    CHECK(contains(html, fmt::format("class=lane>rank {}</text>", rank)));
  }
  CHECK(contains(html, "class=lane>ranks 12-99</text>"));
}

TEST_CASE("a shared lane has the marks and the clocks of all its workers") {
  const TempFolder folder;
  for (const int host : {0, 1}) {
    HostLog log(fmt::format("node{}", host));
    std::vector<MadeWorker> workers;
    for (int rank = 50 * host; rank < 50 * host + 50; ++rank) {
      workers.push_back({.pid = 1000 + rank,
                         .rank = rank,
                         .job = "8812",
                         .scope = rank == 7 ? "load" : "exchange",
                         .entered_s = rank == 7 ? 60.0 : 61.0});
    }
    const std::string id = fmt::format("{}-i1", host);
    add_incident(log, 91.0001, id, workers);
    for (const MadeWorker& worker : workers) {
      add_expiry(log, fmt::format("{}-{}", host, worker.pid), id, worker);
    }
    log.add(
        "killed", 95'000'000,
        fmt::format(R"(,"pid":{0},"id":"{1}-{0}","verdict":"unkillable")", 1049 + 50 * host, host));
    folder.write(fmt::format("{}.jsonl", host), log.text());
  }
  REQUIRE(run_command({"report", folder.path(), "-o", folder.path("hang.html")}).code == 0);
  const std::string html = testing::read_file(folder.path("hang.html"));
  CHECK(names_in(html) ==
        std::vector<std::string>{"node0", "*rank 7", "2 hosts ", "ranks 0-6, 8-99"});
  CHECK(contains(html, "2 hosts <tspan class=doubt>by their own clocks</tspan>"));
  CHECK(contains(html, "class=under>99 workers</text>"));
  CHECK(contains(html, "class=\"ground other\""));
  CHECK(
      contains(html, "<title>other: unkillable (+5.000 s; 2 of this kind, the last at +5.000 s)"));
  CHECK(contains(html, "(+1.000 s; 99 of this kind, the last at +1.000 s)"));
}

TEST_CASE("an expired scope is drawn, however many others its worker has") {
  OneHost host;
  std::string scopes;
  for (int i = 0; i < 20; ++i) {
    scopes += fmt::format(
        R"({}{{"pid":11,"rank":1,"comm":"t","scope":"s{}","elapsed_s":{},"timeout_s":{}}})",
        i > 0 ? "," : "", i, 50 - i, i == 19 ? 31 : 600);
  }
  host.log.add("incident", 90'000'000,
               R"(,"incident":"a-i1","workers":1,"open_scopes":[)" + scopes +
                   R"(],"in_no_scope":[],"omitted":0)");
  host.log.add("expired", 90'000'000,
               R"(,"pid":11,"rank":1,"comm":"t","id":"a-1","incident":"a-i1","scope":"s19",)"
               R"("elapsed_s":31,"timeout_s":31)");
  host.report();
  CHECK(contains(host.html, ">s19 31 s of 31 s</text>"));
  CHECK(contains(host.html, ">14 more scopes not drawn</text>"));
}

TEST_CASE("a warning is at its own time, and the release after it ends the scope's bar") {
  OneHost host;
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  const MadeWorker waits{.pid = 12, .rank = 2, .job = "8812", .scope = "exchange", .entered_s = 61};
  add_incident(host.log, 90.0001, "a-i1", {hung, waits});
  add_expiry(host.log, "a-1", "a-i1", hung);
  host.log.add("warned", 91'040'000,
               fmt::format(R"(,"pid":12,"id":"a-w1","scope":"exchange","reason":"late",)"
                           R"("elapsed_s":29.501,"timeout_s":60,"overdue_ms":1,"soft_mono_ns":{})",
                           host.log.mono_ns(90'500'000)));
  host.log.add("warning_ended", 91'200'000,
               R"(,"pid":12,"id":"a-w1","scope":"exchange","result":"released","after_s":0.6)");
  host.log.add("left_open", 92'000'000,
               R"(,"pid":12,"scope":"next","elapsed_s":0.8,"timeout_s":9)");
  host.log.add("left_open", 92'000'000,
               R"(,"pid":12,"scope":"inner","elapsed_s":0.5,"timeout_s":9)");
  host.report();
  const auto marks = of_worker(host.events, 12, "i");
  REQUIRE(marks.size() == 3);
  CHECK(marks[0].at_s == doctest::Approx(0.5009).epsilon(1e-4));
  CHECK(marks[1].at_s == doctest::Approx(1.0999).epsilon(1e-4));
  CHECK(marks[2].name == "exited inside `next`, `inner`");
  const auto bars = of_worker(host.events, 12, "X");
  REQUIRE(bars.size() == 3);
  CHECK(bars[0].name == "exchange");
  CHECK(bars[0].at_s + bars[0].took_s == doctest::Approx(1.0999).epsilon(1e-4));
  CHECK(bars[1].name == "next");
  CHECK(bars[1].at_s == doctest::Approx(1.1999).epsilon(1e-4));
  CHECK(bars[2].at_s + bars[2].took_s == doctest::Approx(1.9999).epsilon(1e-4));
}

TEST_CASE("the report of a warning is that of the hang to which it led, else of its worker") {
  OneHost host;
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  host.log.add("warned", 80'000'000,
               R"(,"pid":11,"rank":1,"comm":"t","job_id":"8812","id":"a-w1","scope":"load",)"
               R"("reason":"late","elapsed_s":20,"timeout_s":30,"soft_s":20,)"
               R"x("threads":[{"tid":11,"native_stack":["read+0xd (libc.so.6)"]}])x");
  host.report();
  CHECK(contains(host.html, "<h1>rank 1 (pid 11, t) was late in `load`: open for 20 s of 30 s"));
  CHECK(contains(host.html, ">load 20 s of 30 s</text>"));
  CHECK(contains(host.html, "Seconds before and after the first record."));
  CHECK(contains(host.html, "<code>read (libc.so.6)</code>"));
  CHECK_FALSE(contains(host.html, "No incident record"));
  CHECK(of_worker(host.events, 11, "i").size() == 1);
  std::vector<MadeWorker> workers{hung};
  for (const int pid : {12, 13}) {
    workers.push_back(
        {.pid = pid, .rank = pid, .job = "8812", .scope = "exchange", .entered_s = 61});
  }
  add_incident(host.log, 90.0001, "a-i1", workers);
  add_expiry(host.log, "a-1", "a-i1", hung);
  host.folder.write("log", host.log.text());
  REQUIRE(
      run_command({"report", "a-w1", host.folder.path("log"), "-o", host.folder.path("x")}).code ==
      0);
  const std::string html = testing::read_file(host.folder.path("x"));
  CHECK(contains(html, "<h1>rank 1 (pid 11, t) hung in `load`"));
  CHECK(contains(html, "The odd one out: rank 1, in `load`."));
  CHECK(contains(html, "Seconds before and after the first verdict."));
  CHECK_FALSE(contains(html, "No incident record"));
}

TEST_CASE("a trace is in the order of time, and its scopes are beside or inside each other") {
  OneHost host;
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  add_expiry(host.log, "a-1", "a-i1", hung);
  // Two threads, a rounding error, and an epoch of two hours.
  host.log.add("incident", 90'001'000,
               R"(,"incident":"a-i1","workers":1,"open_scopes":[{"pid":11,"scope":"load",)"
               R"("elapsed_s":30,"timeout_s":30},{"pid":11,"scope":"epoch","elapsed_s":7200}],)"
               R"("ended_scopes":[{"pid":11,"scope":"one","ended":[[37,2],[34,2]]},)"
               R"({"pid":11,"scope":"other","ended":[[36,2],[31.9999991,2.1]]}])");
  host.log.add("warned", 80'000'000, R"(,"pid":11,"scope":"load","reason":"late")");
  host.report();
  CHECK(dropped_in(host.events) == 0);
  double before_s = -1e9;
  std::size_t scopes = 0;
  for (const Event& event : host.events) {
    if (event.phase == "M") {
      continue;
    }
    CHECK(event.at_s >= before_s);
    CHECK(event.at_s + 3600 >= 0);
    before_s = event.at_s;
    scopes += event.phase == "X" ? 1U : 0U;
  }
  CHECK(scopes == 6);
}

TEST_CASE("numbers that cannot be are no scopes, and move no event away from its record") {
  OneHost host;
  host.log.add("incident", 90'000'000,
               R"(,"incident":"a-i1","workers":1,"open_scopes":[{"pid":11,"scope":"old",)"
               R"("elapsed_s":1e300},{"pid":11,"scope":"new","elapsed_s":-5}],"ended_scopes":[)"
               R"({"pid":11,"scope":"ended","ended":[[3,-2],[1e300,1],[1,1e300]]}])");
  host.log.add("expired", 90'000'000,
               R"(,"pid":11,"id":"a-1","incident":"a-i1","scope":"load","elapsed_s":30,)"
               R"("timeout_s":1e300,"overdue_ms":1e300,"deadline_mono_ns":-9223372036854775808)");
  host.log.add("killed", 90'100'000,
               R"(,"pid":11,"id":"a-1","verdict":"dead","dead_after_ms":1e300,)"
               R"("signals":[{"name":"SIGKILL","mono_ns":-9223372036854775808}])");
  host.report();
  const auto bars = of_worker(host.events, 11, "X");
  REQUIRE(bars.size() == 1);
  CHECK(bars[0].name == "load");
  CHECK(bars[0].at_s == doctest::Approx(-30));
  for (const Event& event : host.events) {
    CHECK(std::abs(event.at_s) < 3601);
  }
}

TEST_CASE("a verdict without a time leaves the other records at theirs") {
  OneHost host;
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  add_expiry(host.log, "a-1", "", hung);
  host.log.add("killed", 90'100'000, R"(,"pid":11,"id":"a-1","verdict":"dead","dead_after_ms":9)");
  std::string log = host.log.text();
  log.replace(log.find(R"("time":")"), 8, R"("time":0,"x":")");
  host.folder.write("log", log);
  REQUIRE(run_command({"report", host.folder.path("log"), "-o", host.folder.path("x")}).code == 0);
  const std::string html = testing::read_file(host.folder.path("x"));
  CHECK(contains(html, "dead after 9 ms (+0."));
  CHECK_FALSE(contains(html, "e+"));
}

TEST_CASE("the exit status of COMMAND is that of the server of the expiry") {
  OneHost host;
  const std::string of_worker = R"(,"pid":11,"id":"a-1","scope":"load")";
  host.log.add("server_stopped", 80'000'000, R"(,"server_pid":6,"command_status":3)");
  host.log.add("expired", 90'000'000,
               R"(,"server_pid":7,"elapsed_s":30,"timeout_s":30)" + of_worker);
  host.log.add("killed", 90'100'000, R"(,"server_pid":7,"verdict":"dead")" + of_worker);
  host.log.add("server_stopped", 90'200'000, R"(,"server_pid":7,"command_status":1)");
  host.log.add("server_stopped", 90'300'000, R"(,"server_pid":8,"command_status":2)");
  host.report();
  const std::string text = "COMMAND of the server ended with status 1";
  CHECK(contains(host.html, "<dt>Exit</dt><dd><bdi>" + text + "</bdi></dd>"));
  CHECK(contains(run_command({"show", "a-1", host.folder.path("log")}).output, text));
}

TEST_CASE("a log that was joined to itself has each event once") {
  OneHost host;
  const MadeWorker hung{.pid = 11, .rank = 1, .job = "8812", .scope = "load", .entered_s = 60};
  host.log.add("incident", 90'000'100,
               R"(,"incident":"a-i1","workers":1,"open_scopes":[],"ended_scopes":[)"
               R"({"pid":11,"scope":"forward","ended":[[31.5,0.5]]}])");
  add_expiry(host.log, "a-1", "a-i1", hung);
  host.log.add("hook", 95'000'000, R"(,"pid":11,"id":"a-1","result":"exited","exit_status":0)");
  host.folder.write("log", host.log.text() + host.log.text());
  REQUIRE(run_command({"report", host.folder.path("log"), "-o", host.folder.path("x"), "--perfetto",
                       host.folder.path("y")})
              .code == 0);
  const auto events = events_in(host.folder.path("y"));
  CHECK(of_worker(events, 11, "X").size() == 2);
  CHECK(of_worker(events, 11, "i").size() == 2);
}

TEST_CASE("a replaced timeout stands beside the one in the code") {
  for (const auto& [field, text] : std::map<std::string, std::string>{
           {"", "30 s"},
           {R"(,"code_timeout_s":300)", "30 s (300 s in the code)"},
           {R"(,"code_timeout_s":null)", "30 s (none in the code)"}}) {
    OneHost host;
    host.log.add("expired", 90'000'000,
                 R"(,"pid":11,"id":"a-1","scope":"load","elapsed_s":30,"timeout_s":30)" + field);
    host.report();
    CHECK(contains(host.html, "<dt>Timeout</dt><dd><bdi>" + text + "</bdi></dd>"));
  }
}

TEST_CASE("a report of many scopes and of stacks without a common call has a few hundred KB") {
  OneHost host;
  std::string open;
  std::string ended;
  for (int rank = 0; rank < 64; ++rank) {
    const std::string who = fmt::format(R"("pid":{},"rank":{},"comm":"t")", 1000 + rank, rank);
    open += fmt::format(R"({}{{{},"scope":"s","elapsed_s":30,"timeout_s":30}})",
                        rank > 0 ? "," : "", who);
    for (int name = 0; name < 8; ++name) {
      ended +=
          fmt::format(R"({}{{{},"scope":"s{}","ended":[)", ended.empty() ? "" : ",", who, name);
      for (int i = 16; i > 0; --i) {
        ended += fmt::format("[{},0.5]{}", 30 + i + 0.1 * name, i > 1 ? "," : "]}");
      }
    }
  }
  host.log.add("incident", 90'000'000,
               fmt::format(R"(,"incident":"a-i1","workers":64,"open_scopes":[{}],)"
                           R"("ended_scopes":[{}])",
                           open, ended));
  for (int rank = 0; rank < 64; ++rank) {
    const std::string who =
        fmt::format(R"(,"pid":{0},"rank":{1},"comm":"t","id":"a-{0}")", 1000 + rank, rank);
    host.log.add("expired", 90'000'000,
                 who + R"(,"incident":"a-i1","scope":"s","elapsed_s":30,"timeout_s":30)");
    std::string frames;
    for (int frame = 0; frame < 128; ++frame) {
      frames += fmt::format(R"({}"f{}_of_{}{}")", frame > 0 ? "," : "", frame, rank,
                            std::string(150, 'x'));
    }
    host.log.add("evidence", 90'050'000,
                 who + R"(,"threads":[{"tid":1,"native_stack":[)" + frames + "]}]");
  }
  host.report();
  CHECK(host.html.size() < 700'000);
  CHECK(contains(host.html, "scopes, the longest `s0`"));
  CHECK(contains(host.html, "<small>48 workers in 48 other branches</small>"));
}

TEST_CASE("names of any bytes are text in a report") {
  const TempFolder folder;
  HostLog log("node01");
  const std::string name = R"(<script>alert(1)</script>\"'\u202e)";
  const std::string who = R"("pid":11,"rank":1,"comm":"<b>","scope":")" + name + "\"";
  log.add("incident", 90'000'100,
          R"(,"incident":"a-i1","workers":1,"open_scopes":[{)" + who +
              R"(,"elapsed_s":30,"timeout_s":30}],"in_no_scope":[],"omitted":0)");
  log.add("expired", 90'000'200,
          "," + who + R"(,"id":"a-1","incident":"a-i1","elapsed_s":30,"timeout_s":30,"cmdline":")" +
              std::string(65536, '<') + "\"");
  folder.write("log", log.text());
  REQUIRE(run_command({"report", "a-1", folder.path("log"), "-o", folder.path("hang.html"),
                       "--perfetto", folder.path("hang.json")})
              .code == 0);
  const std::string html = testing::read_file(folder.path("hang.html"));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "<b>"));
  CHECK_FALSE(contains(html, "\xE2\x80\xAE"));
  CHECK(contains(html, "&lt;script&gt;alert(1)"));
  CHECK(events_in(folder.path("hang.json")).size() > 2);
}

TEST_CASE("the first word is an id unless a file has that name, and a wrong one is a line") {
  const Ran unknown = run_command({"report", "zz", data_path("hang.jsonl")});
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.errors, "no expiry 'zz'"));
  const TempFolder folder;
  CHECK(run_command({"report", data_path("hang.jsonl"), "-o", folder.path("x")}).code == 0);
  const Ran unwritable =
      run_command({"report", data_path("hang.jsonl"), "-o", folder.path("no/x")});
  CHECK(unwritable.code == 1);
  CHECK(unwritable.errors ==
        "timer_client: cannot write '" + folder.path("no/x") + "': No such file or directory\n");
  const Ran full = run_command({"report", data_path("hang.jsonl"), "-o", "/dev/full"});
  CHECK(full.code == 1);
  CHECK(full.errors == "timer_client: cannot write to '/dev/full': No space left on device\n");
}

TEST_CASE("- is standard output, which then has nothing else") {
  const TempFolder folder;
  const Ran html = run_command({"report", data_path("hang.jsonl"), "-o", "-"});
  CHECK(html.code == 0);
  CHECK(html.output.starts_with("<!DOCTYPE html>"));
  CHECK(html.output.ends_with("</html>\n"));
  const Ran trace =
      run_command({"report", data_path("hang.jsonl"), "-o", folder.path("x"), "--perfetto", "-"});
  CHECK(trace.code == 0);
  CHECK(trace.output.starts_with("{\"traceEvents\":["));
  const Ran both = run_command({"report", data_path("hang.jsonl"), "-o", "-", "--perfetto", "-"});
  CHECK(both.code == 2);
  CHECK(both.output.empty());
  CHECK(both.errors ==
        "timer_client: report: --perfetto '-': expected another file than that of --output\n");
  CHECK(run_command({"report", data_path("hang.jsonl"), "-o", ""}).code == -1);
}

TEST_CASE("a report replaces no log") {
  const TempFolder folder;
  const std::string log = read_data("hang.jsonl");
  folder.write("a.jsonl", log);
  const Ran ran = run_command({"report", data_path("hang.jsonl"), "-o", folder.path("a.jsonl")});
  CHECK(ran.code == 2);
  CHECK(ran.errors == "timer_client: report: '" + folder.path("a.jsonl") +
                          "': expected a file to write, and this is a log\n");
  CHECK(testing::read_file(folder.path("a.jsonl")) == log);
}

TEST_CASE("a report without a name is in the current folder, whatever the id is") {
  OneHost host;
  host.log.add("expired", 90'000'000,
               R"(,"pid":11,"id":"../x\u0000 )" + std::string(5000, 'y') + R"(","scope":"load")");
  host.folder.write("log", host.log.text());
  const std::string command =
      "cd " + host.folder.path() + " && " TIMER_CLIENT_PROGRAM " report log >out 2>&1";
  CHECK(std::system(command.c_str()) == 0);
  const std::string name = testing::read_file(host.folder.path("out"));
  CHECK(name.starts_with("hang-___x__yyy"));
  CHECK(name.size() < 120);
  CHECK(testing::read_file(host.folder.path(name.substr(0, name.size() - 1)))
            .starts_with("<!DOCTYPE html>"));
}

}  // namespace
}  // namespace filetimer::cli
