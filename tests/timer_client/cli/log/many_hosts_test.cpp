// The logs of many hosts as `log` and `show` take them. The hosts are made up: 64 of them with
// eight ranks each, one of which hangs while the others wait for it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"
#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {
namespace {

constexpr int kHosts = 64;
constexpr int kRanksAHost = 8;

std::string host_name(int host) {
  return fmt::format("node{:02}", host);
}

struct Cluster {
  int hosts = kHosts;
  int culprit = 197;  // the rank that hangs
};

// What the server of one host wrote. All ranks entered `step` at ten minutes. The culprit entered
// `load` five seconds later and expired 30 s after that; the others entered `exchange` after ten
// seconds, within 20 ms of each other.
std::string log_of_host(const Cluster& cluster, int host) {
  HostLog log(host_name(host));
  log.add("server_started", 540 * kSecondUs, R"(,"version":"0.1.0")");
  std::vector<MadeWorker> workers;
  for (int rank = host * kRanksAHost; rank < (host + 1) * kRanksAHost; ++rank) {
    const bool hangs = rank == cluster.culprit;
    workers.push_back({.pid = 1000 + rank,
                       .rank = rank,
                       .job = "8812",
                       .scope = hangs ? "load" : "exchange",
                       .entered_s = hangs ? 605 : 610 + 2e-5 * rank,
                       .step_s = 600});
  }
  const MadeWorker first = *std::ranges::min_element(workers, {}, &MadeWorker::entered_s);
  add_incident(log, first.entered_s + 30, fmt::format("h{:02}-i1", host), workers);
  add_expiry(log, fmt::format("h{:02}-1", host), fmt::format("h{:02}-i1", host), first);
  return log.text();
}

void write_logs(const TempFolder& folder, const Cluster& cluster) {
  for (int host = 0; host < cluster.hosts; ++host) {
    folder.write(host_name(host) + ".jsonl", log_of_host(cluster, host));
  }
}

TEST_CASE("of 64 hosts in a folder the one worker that hung is named") {
  const TempFolder folder;
  write_logs(folder, {});
  const Ran waited = run_command({"show", "h63-1", folder.path()});
  CHECK(waited.code == 0);
  CHECK(waited.errors.empty());
  CHECK(contains(waited.output,
                 "\nThe odd one out: rank 197, in `load`. This worker may have waited for it;\n"
                 "`timer_client show h24-1` with the same logs has more.\n"));
  const std::string page = unwrapped(run_command({"show", "h24-1", folder.path()}).output);
  CHECK(contains(
      page,
      "\n  rank 197 in `load` for 30 s, this one, the odd one out\n"
      "  ranks 0-196, 198-511 in `exchange` for 25 s\n"
      "  First to expire: rank 197 (pid 1197, t) on node24, in `load` (h24-1), this one.\n"));
  CHECK(unwrapped(run_command({"show", folder.path()}).output) == page);
  const std::string json = run_command({"show", "--json", folder.path()}).output;
  CHECK(json == run_command({"show", "--json", "h24-1", folder.path()}).output);
}

TEST_CASE("a folder, folders below and the files themselves are the same logs") {
  const TempFolder folder;
  const Cluster cluster{.hosts = 12, .culprit = 50};
  std::vector<std::string> files{"log", "--json"};
  std::filesystem::create_directories(folder.path("flat"));
  for (int host = 0; host < cluster.hosts; ++host) {
    const std::string text = log_of_host(cluster, host);
    folder.write("flat/" + host_name(host) + ".jsonl", text);
    // Of a file system that shows old copies.
    const std::string snapshot = "flat/.snapshot/" + host_name(host);
    std::filesystem::create_directories(folder.path(snapshot));
    folder.write(snapshot + "/expired.jsonl", text);
    files.push_back(folder.path("flat/" + host_name(host) + ".jsonl"));
    // As run folders are: a pipe and pages beside the log, half of which was rotated.
    const std::string run = "deep/" + host_name(host);
    std::filesystem::create_directories(folder.path(run + "/scopes"));
    REQUIRE(::mkfifo(folder.path(run + "/requests").c_str(), 0600) == 0);
    const std::size_t first_line = text.find('\n') + 1;
    folder.write(run + "/expired.jsonl.1", text.substr(0, first_line));
    folder.write(run + "/expired.jsonl", text.substr(first_line));
    folder.write(run + "/notes.txt", "no log");
  }
  const Ran named = run_command(files);
  CHECK(named.code == 0);
  CHECK(lines_of(named.output).size() == 36);
  for (const char* words : {"flat", "deep", "deep/"}) {
    CAPTURE(words);
    check_ran(run_command({"log", "--json", folder.path(words)}), 0, named.output);
  }
}

TEST_CASE("a log that is meant twice is read once") {
  const TempFolder folder;
  write_logs(folder, {.hosts = 3, .culprit = 9});
  const std::string once = run_command({"log", "--json", folder.path()}).output;
  check_ran(run_command({"log", "--json", folder.path(), folder.path("node01.jsonl")}), 0, once);
  // Renamed while it is opened.
  std::filesystem::create_hard_link(folder.path("node01.jsonl"), folder.path("node01.jsonl.1"));
  check_ran(run_command({"log", "--json", folder.path()}), 0, once);
  std::filesystem::remove(folder.path("node01.jsonl.1"));
  // A copy has the same records, of which those that have an id are read once.
  std::filesystem::copy_file(folder.path("node01.jsonl"), folder.path("copy.jsonl"));
  CHECK(run_command({"log", "--json", "--event", "expired", folder.path()}).output ==
        run_command({"log", "--json", "--event", "expired", folder.path("node00.jsonl"),
                     folder.path("node01.jsonl"), folder.path("node02.jsonl")})
            .output);
  std::filesystem::remove(folder.path("copy.jsonl"));
  // Named by itself and then by its folder: what was rotated belongs to it.
  folder.write("node02.jsonl.1", R"({"schema":1,"event":"rejected","host":"node02"})"
                                 "\n");
  CHECK(lines_of(run_command({"log", "--json", folder.path("node02.jsonl"), folder.path()}).output)
            .size() == 10);
}

TEST_CASE("what cannot be read is told with its name, the rest is shown, and the exit is 1") {
  const TempFolder folder;
  const Cluster cluster{.hosts = 3, .culprit = 9};
  write_logs(folder, cluster);
  const Ran whole = run_command({"log", folder.path()});
  check_ran(run_command({"log", folder.path(), "/nonexistent/n.jsonl"}), 1, whole.output,
            "timer_client: cannot open '/nonexistent/n.jsonl': No such file or directory\n");
  for (const char* const command : {"log", "show", "suggest"}) {
    CAPTURE(command);
    const Ran unread = run_command({command, folder.path(), "/proc/self/mem"});
    CHECK(unread.code == 1);
    CHECK(contains(unread.errors, "cannot read '/proc/self/mem': Input/output error\n"));
  }
  // A link to nowhere stands for a log that should be there.
  std::filesystem::create_symlink("/nonexistent/x", folder.path("node07.jsonl"));
  const Ran dangling = run_command({"show", "h01-1", folder.path()});
  CHECK(dangling.code == 1);
  CHECK(contains(dangling.output, "rank 9 (pid 1009, t) on node01 hung in `load`"));
  CHECK(dangling.errors == "timer_client: cannot open '" + folder.path("node07.jsonl") +
                               "': No such file or directory\n");
  for (const std::string& to : {folder.path("page"), std::string("-")}) {
    CHECK(run_command({"report", "h01-1", "-o", to, folder.path()}).code == 1);
  }
  std::filesystem::remove(folder.path("node07.jsonl"));
  std::filesystem::create_directories(folder.path("node08.jsonl"));
  check_ran(run_command({"log", folder.path("node08.jsonl")}), 1, "",
            "timer_client: no log (*.jsonl) in folder '" + folder.path("node08.jsonl") + "'\n");
  // A pipe may have no end.
  REQUIRE(::mkfifo(folder.path("expired.jsonl").c_str(), 0600) == 0);
  check_ran(run_command({"log", "--dir", folder.path()}), 1, "",
            "timer_client: '" + folder.path("expired.jsonl") +
                "' is not a regular file (the default log of '" + folder.path() + "')\n");
  CHECK(run_command({"log", folder.path()}).output == whole.output);
}

TEST_CASE("links to folders are followed where they are named only") {
  const TempFolder folder;
  write_logs(folder, {.hosts = 3, .culprit = 9});
  const std::string whole = run_command({"log", folder.path()}).output;
  const TempFolder other;
  write_logs(other, {.hosts = 1, .culprit = 9});
  std::filesystem::create_symlink(other.path(), folder.path("latest"));
  CHECK(run_command({"log", folder.path()}).output == whole);
  CHECK(run_command({"log", folder.path("latest")}).output ==
        run_command({"log", other.path()}).output);
}

TEST_CASE("hosts of long names can be told apart, also in a table that is longer than that") {
  const TempFolder folder;
  for (int host = 0; host < 3; ++host) {
    const std::string name = fmt::format("gpu-worker-a01{:02}", host);
    HostLog log(name, 0);
    log.add("server_started", host, R"(,"version":"0.1.0")");
    for (int i = 0; i < 400; ++i) {
      log.add("killed", (i * 3 + host) * 1000 + 1000,
              fmt::format(R"(,"pid":4194304,"rank":1000,"id":"abcdef-{}","scope":)"
                          R"("a scope of a long name","verdict":"unkillable","reason":"state D")",
                          10'000 + i));
    }
    folder.write(name + ".jsonl", log.text());
  }
  const Ran ran = run_command({"log", folder.path()});
  const std::vector<std::string> lines = lines_of(ran.output);
  REQUIRE(lines.size() == 1 + 3 + 1'200);
  for (int i = 0; i < 1'200; ++i) {
    REQUIRE(contains(lines[static_cast<std::size_t>(i) + 4],
                     fmt::format(" gpu-worker-a01{:02} ", i % 3)));
  }
}

// --- who waited on whom ---

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
  CHECK_FALSE(is_among(workers, {}));  // a worker without any name
}

TEST_CASE("a list of workers has an end") {
  std::vector<WorkerName> every_second;
  std::vector<WorkerName> rankless;
  for (std::int64_t rank = 0; rank < 512; ++rank) {
    if (rank % 2 == 0) {
      every_second.push_back({"", rank + 1000, rank, "t"});
    }
    rankless.push_back({"", rank, {}, ""});
  }
  CHECK(workers_text(every_second) ==
        "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 240 more");
  CHECK(workers_text(rankless).ends_with(", pid 15 and 496 more"));
}

TEST_CASE("of many hosts whose incident records are missing a few are named") {
  const TempFolder folder;
  for (int host = 0; host < 11; ++host) {
    const MadeWorker worker{.pid = 1, .rank = host, .job = "j", .scope = "s", .entered_s = 100};
    HostLog log(host_name(host));
    if (host == 0) {
      add_incident(log, 130, "i", {worker});
    }
    add_expiry(log, host_name(host), "i", worker);
    folder.write(host_name(host) + ".jsonl", log.text());
  }
  const std::string page = unwrapped(run_command({"show", "node00", folder.path()}).output);
  CHECK(contains(page, " are not in these logs: node01, "));
  CHECK(contains(page, ", node08 and 2 more.\n"));
}

TEST_CASE("of many workers in many places, and of many that expired, a few are named") {
  std::vector<MadeWorker> workers;
  for (int rank = 0; rank < 512; ++rank) {
    const bool is_elsewhere = rank < 20;
    workers.push_back(
        {.pid = 100 + rank,
         .rank = rank,
         .job = "j",
         .scope = is_elsewhere ? fmt::format("s{:02}", std::min(rank, 18)) : "exchange",
         .entered_s = is_elsewhere ? 80.0 + rank : 100.0});
  }
  HostLog log("node07");
  add_incident(log, 130, "a-i1", workers);
  for (int rank = 20; rank < 120; ++rank) {
    add_expiry(log, fmt::format("a-{}", rank), "a-i1", workers[static_cast<std::size_t>(rank)]);
  }
  const std::string page = unwrapped(run_over(log, {"show", "a-50"}).output);
  CAPTURE(page);
  CHECK(contains(page,
                 "\n  rank 6 in `s06` for 44 s\n"
                 "  ranks 20-511 in `exchange` for 30 s, this one among them\n"
                 "  and 13 more in 12 other places\n"
                 "  First to expire: rank 20 (pid 120, t), in `exchange` (a-20).\n"));
  CHECK(contains(page, "; rank 28 (pid 128, t), in `exchange` (a-28) and 91 more.\n"));
  CHECK_FALSE(contains(page, "the odd one out"));  // two places have as few workers
}

}  // namespace
}  // namespace filetimer::cli
