// Who waited on whom, as `show` tells it: the grouping of workers, and the lines that are made of
// it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {
namespace {

struct Open {
  std::optional<int> rank;
  std::string scope;
  double elapsed_s;
  std::optional<double> remaining_s = {};
  int tid = 0;
  int pid = 0;  // 0: 100 + rank
};

// What a log with one incident, of these scopes, says.
JobIncident incident_of(const std::vector<Open>& scopes) {
  std::string list;
  for (const Open& open : scopes) {
    const int pid = open.pid == 0 ? 100 + open.rank.value_or(0) : open.pid;
    list += fmt::format(
        R"({}{{"pid":{},{}"tid":{},"comm":"trainer","scope":"{}","elapsed_s":{},"timeout_s":30{}}})",
        list.empty() ? "" : ",", pid, open.rank ? fmt::format(R"("rank":{},)", *open.rank) : "",
        open.tid == 0 ? pid : open.tid, open.scope, open.elapsed_s,
        open.remaining_s ? fmt::format(R"(,"remaining_s":{})", *open.remaining_s) : "");
  }
  std::string line = fmt::format(
      R"({{"schema":1,"event":"incident","incident":"i1","time":"2026-11-21T03:00:00Z",)"
      R"("host":"node07","open_scopes":[{}],"in_no_scope":[]}})",
      list);
  line.reserve(line.size() + kLinePadding);
  IncidentRecords records;
  const auto record = parse_record(line);
  REQUIRE(record);
  records.take(*record);
  ExpiredWorker around = read_expired(*record);
  around.incident = "i1";
  return records.combine(around, true);
}

TEST_CASE("workers are grouped by their innermost scope, the odd one out first") {
  std::vector<Open> scopes;
  for (const int rank : {0, 1, 2, 3, 5}) {
    scopes.push_back({rank, "epoch", 100});
    scopes.push_back({rank, rank == 3 ? "step" : "exchange", rank == 3 ? 31 : 29.5});
  }
  const JobIncident incident = incident_of(scopes);
  REQUIRE(incident.groups.size() == 2);
  CHECK(incident.groups[0].scope == "step");
  CHECK(workers_text(incident.groups[0].workers) == "rank 3");
  CHECK(incident.groups[1].scope == "exchange");
  CHECK(workers_text(incident.groups[1].workers) == "ranks 0-2, 5");
  CHECK(incident.has_odd_group());
}

TEST_CASE("one that came to the scope much later stands apart") {
  const JobIncident incident =
      incident_of({{0, "exchange", 30.0}, {1, "exchange", 3.0}, {2, "exchange", 30.0}});
  REQUIRE(incident.groups.size() == 2);
  CHECK(workers_text(incident.groups[0].workers) == "rank 1");
  CHECK(incident.groups[0].longest_s == 3.0);
  CHECK(workers_text(incident.groups[1].workers) == "ranks 0, 2");
}

TEST_CASE("of a worker's threads the one whose deadline comes next says where it is") {
  std::vector<Open> scopes;
  for (const int rank : {0, 1, 2}) {
    scopes.push_back({rank, rank == 1 ? "load" : "exchange", 29, 1, 100 + rank});
    scopes.push_back({rank, "read ahead", 0.1, 60, 200 + rank});
  }
  const JobIncident incident = incident_of(scopes);
  REQUIRE(incident.groups.size() == 2);
  CHECK(incident.groups[0].scope == "load");
  CHECK(incident.groups[1].scope == "exchange");
}

TEST_CASE("a process without a rank is not the odd one out among ranks") {
  const JobIncident incident = incident_of(
      {{0, "exchange", 30}, {1, "exchange", 30}, {2, "exchange", 30}, {{}, "job", 100, {}, 0, 7}});
  REQUIRE(incident.groups.size() == 2);
  CHECK(incident.groups[0].scope == "exchange");
  CHECK(workers_text(incident.groups[1].workers) == "pid 7 (trainer)");
  CHECK_FALSE(incident.has_odd_group());
}

TEST_CASE("several may be odd, and nobody is when two halves face each other") {
  const auto has_odd = [](int odd, int others) {
    std::vector<Open> scopes;
    for (int rank = 0; rank < odd + others; ++rank) {
      scopes.push_back({rank, rank < odd ? "load" : "exchange", 30});
    }
    return incident_of(scopes).has_odd_group();
  };
  CHECK(has_odd(1, 2));
  CHECK(has_odd(2, 510));
  CHECK_FALSE(has_odd(1, 1));
  CHECK_FALSE(has_odd(2, 3));
  CHECK_FALSE(has_odd(4, 0));
}

TEST_CASE("workers are named by what is known of them") {
  CHECK(worker_text({{}, 4711, 2, "trainer"}) == "rank 2 (pid 4711, trainer)");
  CHECK(worker_text({{}, {}, 2, ""}) == "rank 2");
  CHECK(worker_text({{}, {}, 2, "trainer"}) == "rank 2 (trainer)");
  CHECK(worker_text({{}, 4711, {}, "trainer"}) == "pid 4711 (trainer)");
  CHECK(worker_text({"node08", 4711, {}, ""}) == "pid 4711 on node08");
  CHECK(worker_text({{}, {}, {}, "trainer"}) == "trainer");
  CHECK(worker_text({}) == "a worker");
}

TEST_CASE("a worker is found by its process, else by its rank, on its host") {
  const std::vector<WorkerName> workers = {
      {{}, 11, 0, ""}, {"node08", 12, 1, ""}, {{}, {}, {}, "x"}};
  CHECK(is_among(workers, {{}, 11, {}, ""}));
  CHECK(is_among(workers, {{}, {}, 0, ""}));
  CHECK(is_among(workers, {"node08", 12, 7, ""}));
  CHECK_FALSE(is_among(workers, {{}, 12, 1, ""}));
  CHECK_FALSE(is_among(workers, {{}, 13, 0, ""}));
  CHECK_FALSE(is_among(workers, {}));  // of nobody known nobody is like him
}

TEST_CASE("ranks that follow each other are a range, and a list has an end") {
  std::vector<WorkerName> most;
  std::vector<WorkerName> every_second;
  for (std::int64_t rank = 0; rank < 512; ++rank) {
    if (rank != 2) {
      most.push_back({"", rank + 1000, rank, "t"});
    }
    if (rank % 2 == 0) {
      every_second.push_back({"", rank + 1000, rank, "t"});
    }
  }
  CHECK(workers_text(most) == "ranks 0, 1, 3-511");
  CHECK(workers_text(every_second) ==
        "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 240 more");
}

// --- the lines of the page -------------------------------------------------------------------

// Of one host and moment, in microseconds after the hour.
struct At {
  std::string host;
  std::int64_t us;
};

std::string head(const std::string& event, const At& at) {
  return fmt::format(
      R"({{"schema":1,"event":"{}","time":"2026-11-21T03:{:02}:{:02}.{:06}Z","mono_ns":{},)"
      R"("host":"{}")",
      event, at.us / 60'000'000, at.us / 1'000'000 % 60, at.us % 1'000'000,
      1'000'000'000'000 + at.us * 1000, at.host);
}

struct In {
  int rank;
  std::string scope;  // empty: none
  double elapsed_s;
};

std::string incident(const At& at, const std::string& id, const std::vector<In>& workers) {
  std::string scopes;
  std::string idle;
  for (const In& in : workers) {
    const std::string who =
        fmt::format(R"({{"pid":{},"rank":{},"comm":"t")", 100 + in.rank, in.rank);
    if (in.scope.empty()) {
      idle += (idle.empty() ? "" : ",") + who + "}";
    } else {
      scopes += fmt::format(R"({}{},"scope":"{}","elapsed_s":{},"timeout_s":30}})",
                            scopes.empty() ? "" : ",", who, in.scope, in.elapsed_s);
    }
  }
  return head("incident", at) +
         fmt::format(
             R"(,"incident":"{}","workers":{},"open_scopes":[{}],"in_no_scope":[{}],"omitted":0}})"
             "\n",
             id, workers.size(), scopes, idle);
}

std::string expired(const At& at, const std::string& incident, const std::string& id, int rank,
                    const std::string& scope, const std::string& job = "8812") {
  return head("expired", at) +
         fmt::format(R"(,"pid":{},"comm":"t","rank":{},"job_id":"{}","id":"{}","incident":"{}",)"
                     R"("scope":"{}","elapsed_s":30,"timeout_s":30,"deadline_mono_ns":{}}})"
                     "\n",
                     100 + rank, rank, job, id, incident, scope,
                     1'000'000'000'000 + at.us * 1000 - 100'000);
}

// The lines under "Ranks at time of expiry", each from its first letter.
std::vector<std::string> ranks_at_expiry(const std::vector<std::string>& logs,
                                         const std::string& id) {
  const TempFolder folder;
  std::vector<std::string> words{"show", id};
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const std::string name = fmt::format("log{}", i);
    folder.write(name, logs[i]);
    words.push_back(folder.path(name));
  }
  const Ran ran = run_command(words);
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  std::vector<std::string> lines;
  bool here = false;
  for (const std::string& line : lines_of(ran.output)) {
    if (here && line.empty()) {
      break;
    }
    if (here && line.starts_with("    ")) {
      lines.back() += line.substr(3);  // the rest of a long one
    } else if (here) {
      lines.push_back(line.substr(2));
    }
    here = here || line == "Ranks at time of expiry";
  }
  return lines;
}

using Lines = std::vector<std::string>;

const At kHere{"node07", 600'000'000};

TEST_CASE("the page says who was where and in whom both signs of the cause meet") {
  struct Row {
    const char* name;
    std::vector<In> workers;
    int first;  // the rank that expired, and is shown
    Lines lines;
  };
  const std::vector<Row> rows = {
      {"one hangs, the others wait",
       {{0, "exchange", 29.6}, {1, "exchange", 29.6}, {2, "load", 30}, {3, "exchange", 29.6}},
       2,
       {"rank 2 in `load` for 30 s, this one, the odd one out",
        "ranks 0, 1, 3 in `exchange` for 29.6 s",
        "First to expire: rank 2 (pid 102, t), this one, the odd one out."}},
      {"the one that waited expires first",
       {{0, "exchange", 30}, {1, "exchange", 29.6}, {2, "load", 12}, {3, "exchange", 29.6}},
       0,
       {"rank 2 in `load` for 12 s, the odd one out",
        "ranks 0, 1, 3 in `exchange` for 29.6 s to 30 s, this one among them",
        "First to expire: rank 0 (pid 100, t), this one, not the odd one out."}},
      {"the one they wait for is in no scope",
       {{0, "exchange", 30}, {1, "", 0}, {2, "exchange", 30}, {3, "exchange", 30}},
       0,
       {"rank 1 in no scope, the odd one out",
        "ranks 0, 2, 3 in `exchange` for 30 s, this one among them",
        "First to expire: rank 0 (pid 100, t), this one, not the odd one out."}},
      {"two are odd",
       {{0, "load", 30},
        {1, "load", 30},
        {2, "exchange", 29.6},
        {3, "exchange", 29.6},
        {4, "exchange", 29.6},
        {5, "exchange", 29.6}},
       1,
       {"ranks 0, 1 in `load` for 30 s, this one among them, the odd ones out",
        "ranks 2-5 in `exchange` for 29.6 s",
        "First to expire: rank 1 (pid 101, t), this one, one of the odd ones out."}},
      {"all are in one place",
       {{0, "exchange", 30}, {1, "exchange", 30}},
       0,
       {"ranks 0, 1 in `exchange` for 30 s, this one among them",
        "First to expire: rank 0 (pid 100, t), this one."}}};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const std::string& scope = row.workers[static_cast<std::size_t>(row.first)].scope;
    CHECK(ranks_at_expiry({incident(kHere, "a-i1", row.workers) +
                           expired(kHere, "a-i1", "a-1", row.first, scope)},
                          "a-1") == row.lines);
  }
}

// What the page says before its first empty line, as one line.
std::string beginning_of_page(const std::string& log, const std::string& id) {
  const TempFolder folder;
  folder.write("log", log);
  std::string beginning;
  for (const std::string& line : lines_of(run_command({"show", id, folder.path("log")}).output)) {
    if (line.empty()) {
      break;
    }
    beginning += (beginning.empty() ? "" : " ") + line;
  }
  return beginning;
}

TEST_CASE("the page of one that may have waited names the odd one out at once") {
  const std::string odd =
      incident(kHere, "a-i1",
               {{0, "exchange", 30}, {1, "exchange", 30}, {2, "load", 12}, {3, "exchange", 30}});
  const std::string waited = odd + expired(kHere, "a-i1", "a-1", 0, "exchange");
  const std::string first =
      "rank 0 (pid 100, t) hung in `exchange`: open for 30 s of 30 s, and no record says how it "
      "ended. The odd one out: rank 2, in `load`. This worker may have waited for it";
  CHECK(beginning_of_page(waited, "a-1") == first + ".");
  const std::string both = waited + expired(kHere, "a-i1", "a-2", 2, "load");
  CHECK(beginning_of_page(both, "a-1") ==
        first + "; `timer_client show a-2` with the same logs has more.");
  CHECK_FALSE(contains(beginning_of_page(both, "a-2"), "odd"));
  const std::string nested = waited + expired(kHere, "a-i1", "a-2", 2, "step") +
                             expired(kHere, "a-i1", "a-3", 2, "load") +
                             expired(kHere, "a-i1", "a-4", 2, "load");
  CHECK(contains(beginning_of_page(nested, "a-1"), "`timer_client show a-3` "));
  CHECK_FALSE(contains(beginning_of_page(incident(kHere, "a-i1", {{0, "exchange", 30}}) +
                                             expired(kHere, "a-i1", "a-1", 0, "exchange"),
                                         "a-1"),
                       "odd"));
  const std::string two = incident(kHere, "a-i1",
                                   {{0, "exchange", 30},
                                    {1, "load", 30},
                                    {2, "load", 30},
                                    {3, "exchange", 30},
                                    {4, "exchange", 30},
                                    {5, "exchange", 30}}) +
                          expired(kHere, "a-i1", "a-1", 0, "exchange");
  CHECK(contains(beginning_of_page(two, "a-1"),
                 "The odd ones out: ranks 1, 2, in `load`. This worker may have waited for them."));
}

TEST_CASE("of 512 ranks in many places the outliers are shown and the rest is counted") {
  std::vector<In> workers;
  for (int rank = 0; rank < 512; ++rank) {
    workers.push_back({rank, rank < 20 ? fmt::format("s{:02}", rank) : "exchange",
                       rank < 20 ? 50.0 - rank : 30.0});
  }
  const Lines lines = ranks_at_expiry(
      {incident(kHere, "a-i1", workers) + expired(kHere, "a-i1", "a-1", 20, "exchange")}, "a-1");
  REQUIRE(lines.size() == 10);
  CHECK(lines[0] == "rank 0 in `s00` for 50 s");
  CHECK(lines[6] == "rank 6 in `s06` for 44 s");
  CHECK(lines[7] == "and 13 more in 13 other places");
  CHECK(lines[8] == "ranks 20-511 in `exchange` for 30 s, this one among them");
}

TEST_CASE("of many that expired together a few are named and the rest is counted") {
  std::string log = incident(kHere, "a-i1", {{0, "exchange", 30}});
  for (int rank = 0; rank < 100; ++rank) {
    log += expired(kHere, "a-i1", fmt::format("a-{}", rank), rank, "exchange");
  }
  const Lines lines = ranks_at_expiry({log}, "a-50");
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] == "First to expire: rank 0 (pid 100, t), a-0.");
  CHECK(lines[2].starts_with("Expired, too: rank 1 (pid 101, t), a-1; rank 2 (pid 102, t), a-2; "));
  CHECK(lines[2].ends_with("; rank 8 (pid 108, t), a-8 and 90 more."));
}

TEST_CASE("a worker that expired in several scopes is named once, with each of them") {
  const auto later = [](std::int64_t ms) { return At{"node07", kHere.us + ms * 1000}; };
  const std::string log =
      incident(kHere, "a-i1", {{0, "load", 30}, {1, "load", 30}}) +
      expired(kHere, "a-i1", "a-1", 1, "step") + expired(later(1), "a-i1", "a-2", 0, "step") +
      expired(later(2), "a-i1", "a-3", 1, "load") + expired(later(3), "a-i1", "a-4", 0, "load");
  const std::string first = "First to expire: rank 1 (pid 101, t), ";
  const std::string other = "Expired, too: rank 0 (pid 100, t), ";
  const Lines of_first = ranks_at_expiry({log}, "a-3");
  CHECK(of_first[1] == first + "this one, in `step` (a-1), in `load` (a-3).");
  CHECK(of_first.back() == other + "in `step` (a-2), in `load` (a-4).");
  const Lines of_other = ranks_at_expiry({log}, "a-2");
  CHECK(of_other[1] == first + "in `step` (a-1), in `load` (a-3).");
  CHECK(of_other.back() == other + "this one, in `step` (a-2), in `load` (a-4).");
}

TEST_CASE("an earlier expiry of the job on this host is the first") {
  const At earlier{"node07", kHere.us - 5'000'000};
  const std::string log = incident(earlier, "a-i1", {{2, "load", 30}, {0, "exchange", 25}}) +
                          expired(earlier, "a-i1", "a-1", 2, "load") +
                          incident(kHere, "a-i2", {{0, "exchange", 30}, {1, "exchange", 30}}) +
                          expired(kHere, "a-i2", "a-2", 0, "exchange");
  CHECK(ranks_at_expiry({log}, "a-2") ==
        Lines{"ranks 0, 1 in `exchange` for 30 s, this one among them",
              "First to expire: rank 2 (pid 102, t), a-1."});
  CHECK(ranks_at_expiry({log}, "a-1").back() == "Expired, too: rank 0 (pid 100, t), a-2.");
}

TEST_CASE("what happened to another job, or long before, is not taken for the cause") {
  const At earlier{"node07", kHere.us - 5'000'000};
  const At long_before{"node07", kHere.us - 100'000'000};
  const std::string ours =
      incident(kHere, "a-i3", {{0, "exchange", 30}}) + expired(kHere, "a-i3", "a-3", 0, "exchange");
  CHECK(ranks_at_expiry({expired(earlier, "a-i1", "a-1", 2, "load", "another") +
                         expired(long_before, "a-i2", "a-2", 2, "load") + ours},
                        "a-3") == ranks_at_expiry({ours}, "a-3"));
}

TEST_CASE("the hosts of a job are taken together, at the moment of the incident shown") {
  const At there{"node08", kHere.us + 2'000'000};
  const std::string here = incident(kHere, "a-i1", {{0, "exchange", 30}, {1, "exchange", 30}}) +
                           expired(kHere, "a-i1", "a-1", 0, "exchange");
  const std::string other = incident(there, "b-i1", {{2, "exchange", 32}, {3, "load", 31}}) +
                            expired(there, "b-i1", "b-1", 3, "load");
  CHECK(ranks_at_expiry({here, other}, "a-1") ==
        Lines{"rank 3 in `load` for 29 s, the odd one out",
              "ranks 0-2 in `exchange` for 30 s, this one among them",
              "First to expire: rank 0 (pid 100, t), this one, not the odd one out.",
              "Expired, too: rank 3 (pid 103, t) on node08, b-1.",
              "With the records of node08: order and times are those of the hosts' clocks, which "
              "may differ."});
  // Seen from there, two seconds later.
  CHECK(ranks_at_expiry({other, here}, "b-1") ==
        Lines{"rank 3 in `load` for 31 s, this one, the odd one out",
              "ranks 0-2 in `exchange` for 30 s to 32 s",
              "First to expire: rank 0 (pid 100, t) on node07, a-1, not the odd one out.",
              "With the records of node07: order and times are those of the hosts' clocks, which "
              "may differ."});
  // A host of another job is not.
  const std::string stranger = incident(there, "c-i1", {{2, "load", 32}}) +
                               expired(there, "c-i1", "c-1", 2, "load", "another");
  CHECK(ranks_at_expiry({here, stranger}, "a-1") == ranks_at_expiry({here}, "a-1"));
}

}  // namespace
}  // namespace filetimer::cli
