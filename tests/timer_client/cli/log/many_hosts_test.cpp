// The logs of many hosts as `log` and `show` take them. The hosts are made up: 64 of them with
// eight ranks each, one of which hangs while the others wait for it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

constexpr int kHosts = 64;
constexpr int kRanksAHost = 8;

std::string host_name(int host) {
  return fmt::format("node{:02}", host);
}

struct Cluster {
  int hosts = kHosts;
  int culprit = 197;                   // the rank that hangs
  std::string culprit_scope = "load";  // empty: it is in none
  std::string job = "8812";
  std::int64_t began_us = 600 * kSecondUs;  // when all entered `epoch`
  std::int64_t waiting_timeout_us = 30 * kSecondUs;
  bool has_epoch = true;
  std::map<int, std::int64_t> clocks = {};  // how far each host's is ahead
  std::function<std::string(int)> prefix = [](int host) { return fmt::format("h{:02}", host); };
};

// The culprit enters `load` five seconds after the epoch began and expires 30 s later. The others
// enter `exchange` ten seconds after it began, within 20 ms of each other.
std::int64_t entered_us(const Cluster& cluster, int rank) {
  return cluster.began_us + (rank == cluster.culprit ? 5 * kSecondUs : 10 * kSecondUs + 20 * rank);
}

std::int64_t expires_us(const Cluster& cluster, int rank) {
  return entered_us(cluster, rank) +
         (rank == cluster.culprit ? 30 * kSecondUs : cluster.waiting_timeout_us);
}

bool may_expire(const Cluster& cluster, int rank) {
  return rank != cluster.culprit || !cluster.culprit_scope.empty();
}

std::string scope_of(const Cluster& cluster, int rank) {
  return rank == cluster.culprit ? cluster.culprit_scope : "exchange";
}

// What the server of one host wrote: the incident of its first expiry, then that expiry.
std::string log_of_host(const Cluster& cluster, int host) {
  const auto clock = cluster.clocks.find(host);
  HostLog log(host_name(host), clock == cluster.clocks.end() ? 0 : clock->second);
  log.add("server_started", cluster.began_us - 60 * kSecondUs, R"(,"version":"0.1.0")");
  int first = -1;
  for (int rank = host * kRanksAHost; rank < (host + 1) * kRanksAHost; ++rank) {
    if (may_expire(cluster, rank) &&
        (first < 0 || expires_us(cluster, rank) < expires_us(cluster, first))) {
      first = rank;
    }
  }
  const std::int64_t at_us = expires_us(cluster, first);
  const std::string id = cluster.prefix(host);
  std::string scopes;
  std::string idle;
  for (int rank = host * kRanksAHost; rank < (host + 1) * kRanksAHost; ++rank) {
    const auto open = [&](const std::string& scope, std::int64_t since_us) {
      scopes += fmt::format(
          R"({}{{"pid":{},"rank":{},"comm":"t","job_id":"{}","scope":"{}","elapsed_s":{:.6f},)"
          R"("timeout_s":30}})",
          scopes.empty() ? "" : ",", 1000 + rank, rank, cluster.job, scope,
          static_cast<double>(at_us - since_us) / 1e6);
    };
    if (!may_expire(cluster, rank)) {
      idle = fmt::format(R"({{"pid":{},"rank":{},"comm":"t","job_id":"{}"}})", 1000 + rank, rank,
                         cluster.job);
      continue;
    }
    if (cluster.has_epoch) {
      open("epoch", cluster.began_us);
    }
    open(scope_of(cluster, rank), entered_us(cluster, rank));
  }
  log.add("incident", at_us,
          fmt::format(R"(,"incident":"{}-i1","workers":{},"open_scopes":[{}],"in_no_scope":[{}],)"
                      R"("omitted":0)",
                      id, kRanksAHost, scopes, idle));
  log.add("expired", at_us + 100,
          fmt::format(R"(,"pid":{},"start_time":7,"comm":"t","rank":{},"job_id":"{}","id":"{}-1",)"
                      R"("incident":"{}-i1","scope":"{}","elapsed_s":30,"timeout_s":30,)"
                      R"("overdue_ms":0.1,"deadline_mono_ns":{})",
                      1000 + first, first, cluster.job, id, id, scope_of(cluster, first),
                      log.mono_ns(at_us)));
  return log.text();
}

void write_logs(const TempFolder& folder, const Cluster& cluster) {
  for (int host = 0; host < cluster.hosts; ++host) {
    folder.write(host_name(host) + ".jsonl", log_of_host(cluster, host));
  }
}

// The part below the table.
std::string verdict_of(const Ran& ran) {
  const std::size_t begin = ran.output.find("\nWho hung first");
  return begin == ran.output.npos ? "" : ran.output.substr(begin + 1);
}

std::string verdict_of(const Cluster& cluster, std::vector<std::string> words = {}) {
  const TempFolder folder;
  write_logs(folder, cluster);
  words.insert(words.begin(), "log");
  words.push_back(folder.path());
  const Ran ran = run_command(words);
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  return verdict_of(ran);
}

TEST_CASE("of 64 hosts in a folder the one worker that hung is named") {
  CHECK(verdict_of(Cluster{}) == read_data("many_hosts_verdict.txt"));
}

TEST_CASE("a folder, a pattern, folders below and the files themselves are the same logs") {
  const TempFolder folder;
  const Cluster cluster{.hosts = 12, .culprit = 50};
  std::vector<std::string> files{"log", "--json"};
  std::filesystem::create_directories(folder.path("flat"));
  for (int host = 0; host < cluster.hosts; ++host) {
    const std::string text = log_of_host(cluster, host);
    folder.write("flat/" + host_name(host) + ".jsonl", text);
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
  for (const char* words :
       {"flat", "flat/*.jsonl", "flat/node??.json[l]", "deep", "deep/", "deep/*"}) {
    CAPTURE(words);
    const Ran ran = run_command({"log", "--json", folder.path(words)});
    CHECK(ran.code == 0);
    CHECK(ran.errors.empty());
    CHECK(ran.output == named.output);
  }
}

TEST_CASE("a log that is meant twice is read once") {
  const TempFolder folder;
  write_logs(folder, {.hosts = 3, .culprit = 9});
  const std::string once = run_command({"log", "--json", folder.path()}).output;
  const Ran same = run_command({"log", "--json", folder.path(), folder.path("node01.jsonl")});
  CHECK(same.code == 0);
  CHECK(same.output == once);
  CHECK(same.errors == fmt::format("timer_client: '{0}' is the same file as '{0}': read once\n",
                                   folder.path("node01.jsonl")));
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
  const Ran missing = run_command({"log", folder.path(), "/nonexistent/n.jsonl"});
  CHECK(missing.code == 1);
  CHECK(missing.output == whole.output);
  CHECK(missing.errors ==
        "timer_client: cannot open '/nonexistent/n.jsonl': No such file or directory\n");
  const Ran unmatched = run_command({"log", folder.path(), folder.path("*.log")});
  CHECK(unmatched.code == 1);
  CHECK(unmatched.output == whole.output);
  CHECK(unmatched.errors == "timer_client: no file matches '" + folder.path("*.log") + "'\n");
  // A link to nowhere stands for a log that should be there.
  std::filesystem::create_symlink("/nonexistent/x", folder.path("node07.jsonl"));
  const Ran dangling = run_command({"show", "h01-1", folder.path()});
  CHECK(dangling.code == 1);
  CHECK(contains(dangling.output, "rank 9 (pid 1009, t) hung in `load`"));
  CHECK(dangling.errors == "timer_client: cannot open '" + folder.path("node07.jsonl") +
                               "': No such file or directory\n");
  std::filesystem::remove(folder.path("node07.jsonl"));
  std::filesystem::create_directories(folder.path("node08.jsonl"));
  const Ran nothing = run_command({"log", folder.path("node08.jsonl")});
  CHECK(nothing.code == 1);
  CHECK(nothing.output.empty());
  CHECK(nothing.errors ==
        "timer_client: no log (*.jsonl) in folder '" + folder.path("node08.jsonl") + "'\n");
}

TEST_CASE("what a folder or a pattern leaves out is told") {
  const TempFolder folder;
  write_logs(folder, {.hosts = 3, .culprit = 9});
  const std::string whole = run_command({"log", folder.path()}).output;
  std::filesystem::create_symlink("/nonexistent/x", folder.path("node07.jsonl"));
  const Ran dangling = run_command({"log", folder.path("*.jsonl")});
  CHECK(dangling.code == 1);
  CHECK(dangling.output == whole);
  CHECK(dangling.errors == "timer_client: cannot open '" + folder.path("node07.jsonl") +
                               "': No such file or directory\n");
  std::filesystem::remove(folder.path("node07.jsonl"));
  const TempFolder other;
  write_logs(other, {.hosts = 1, .culprit = 9});
  std::filesystem::create_symlink(other.path(), folder.path("latest"));
  const Ran linked = run_command({"log", folder.path()});
  CHECK(linked.code == 0);
  CHECK(linked.output == whole);
  CHECK(linked.errors == "timer_client: '" + folder.path("latest") +
                             "' is not read: a link to a folder is followed where it is named "
                             "itself\n");
  CHECK(run_command({"log", folder.path("latest")}).errors.empty());
}

TEST_CASE("hosts of long names can be told apart, also in a table that is longer than that") {
  const TempFolder folder;
  for (int host = 0; host < 3; ++host) {
    const std::string name = fmt::format("gpu-worker-a01{:02}", host);
    HostLog log(name, 0);
    log.add("server_started", host, R"(,"version":"0.1.0")");
    for (int i = 0; i < 4'000; ++i) {
      log.add("killed", (i * 3 + host) * 1000 + 1000,
              fmt::format(R"(,"pid":4194304,"rank":1000,"id":"abcdef-{}","scope":)"
                          R"("a scope of a long name","verdict":"unkillable","reason":"state D")",
                          10'000 + i));
    }
    folder.write(name + ".jsonl", log.text());
  }
  const Ran ran = run_command({"log", folder.path()});
  const std::vector<std::string> lines = lines_of(ran.output);
  REQUIRE(lines.size() == 1 + 3 + 12'000);
  for (int i = 0; i < 12'000; ++i) {
    REQUIRE(contains(lines[static_cast<std::size_t>(i) + 4], fmt::format("01{:02} ", i % 3)));
  }
}

}  // namespace
}  // namespace filetimer::cli
