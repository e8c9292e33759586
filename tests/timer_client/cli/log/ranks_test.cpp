// Who waited on whom, as `show` tells it: the grouping of workers, and the lines that are made of
// it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"
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

TEST_CASE("of many workers in many places, and of many that expired, a few are named") {
  std::vector<MadeWorker> workers;
  for (int rank = 0; rank < 512; ++rank) {
    const bool is_elsewhere = rank < 20;
    workers.push_back({.pid = 100 + rank,
                       .rank = rank,
                       .job = "j",
                       .scope = is_elsewhere ? fmt::format("s{:02}", rank) : "exchange",
                       .entered_s = is_elsewhere ? 80.0 + rank : 100.0});
  }
  HostLog log("node07");
  add_incident(log, 130, "a-i1", workers);
  for (int rank = 20; rank < 120; ++rank) {
    add_expiry(log, fmt::format("a-{}", rank), "a-i1", workers[static_cast<std::size_t>(rank)]);
  }
  const TempFolder folder;
  folder.write("log", log.text());
  const std::string page = unwrapped(run_command({"show", "a-50", folder.path("log")}).output);
  CAPTURE(page);
  CHECK(contains(page,
                 "\n  rank 6 in `s06` for 44 s\n  and 13 more in 13 other places\n"
                 "  ranks 20-511 in `exchange` for 30 s, this one among them\n"
                 "  First to expire: rank 20 (pid 120, t), a-20.\n"));
  CHECK(contains(page, "; rank 28 (pid 128, t), a-28 and 90 more.\n"));
}

}  // namespace
}  // namespace filetimer::cli
