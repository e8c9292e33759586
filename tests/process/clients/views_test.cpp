// What dump, show, report and suggest print about real workers of a real server: where the workers
// are, how they hung, and which timeout finds a hang earlier.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "common/proc_files.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

// Their evidence takes time, and is not what is shown here.
TEST_CASE("a dump of many workers has those in the least common scopes, and counts the others") {
  constexpr std::size_t kWorkers = 52;  // four more than an answer has
  Server server({"--evidence", "none"});
  const Worker family("family", {.args = {std::to_string(kWorkers)}});
  const std::vector<pid_t> pids = filetimer::children_of(family.pid(), family.pid());
  REQUIRE(pids.size() == kWorkers);
  // The answer is longer than a pipe has room for.
  std::string lines;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    const int most = i + 1 < kWorkers ? 8 : 40;  // 32 are listed
    for (int outer = 0; outer < most; ++outer) {
      lines += acquire_far(pids[i], fmt::format("outer {} {:0200}", outer, 0));
    }
    const bool is_usual = i + 2 < kWorkers;
    lines += acquire_far(pids[i], is_usual ? "exchange" : fmt::format("odd {}", i));
  }
  CHECK(contains(run_client(server, {"dump"}).err, "no worker is watched"));
  server.send(lines);
  REQUIRE(run_client(server, {"ping"}).status == exited(0));  // the requests were read
  const Finished dumped = run_client(server, {"dump", "--json"});
  CHECK(dumped.status == exited(0));
  CHECK(dumped.out.size() > 65'536);
  const JsonLine answer(dumped.out);
  CHECK(answer.array("workers").size() == kWorkers - 4);
  CHECK(answer.integer("omitted") == 4);
  std::vector<std::int64_t> listed;
  std::size_t most_scopes = 0;
  for (const auto worker : answer.array("workers")) {
    listed.push_back(worker["pid"].get_int64().value());
    most_scopes = std::max(most_scopes, worker["open_scopes"].get_array().value().size());
  }
  CHECK(std::ranges::is_sorted(listed));  // none has a rank
  CHECK(most_scopes == 32);
  for (std::size_t i = kWorkers - 2; i < kWorkers; ++i) {
    CHECK(contains(dumped.out, fmt::format("\"odd {}\"", i)));
  }
  const Finished none = run_client(server, {"dump", "--pid", "1"});
  check_failure(none, 6, "no watched worker has pid 1: expected ");
  CHECK(contains(none.err, fmt::format(" and {} more", kWorkers - 16)));
  CHECK(contains(run_client(server, {"dump", "--rank", "1"}).err, "no watched worker has a rank"));
}

TEST_CASE("dump shows where the workers are, and they go on") {
  Server server;
  const auto other = client_worker(server.dir(), {}, {{"RANK", "1"}});
  const auto one = client_worker(server.dir(), {}, {{"RANK", "0"}});
  CHECK(one->ask("open exchange 3600000") == "yes");
  CHECK(other->ask("open load 3600000") == "yes");
  // A side thread of the server reads the ranks.
  Finished of_rank;
  CHECK(wait_until([&] {
    of_rank = run_client(server, {"dump", "--rank", "1"});
    return of_rank.status == exited(0) &&
           run_client(server, {"dump", "--rank", "0"}).status == exited(0);
  }));
  CHECK(contains(of_rank.out, "`load` for "));
  CHECK_FALSE(contains(of_rank.out, "exchange"));
  const Finished all = run_client(server, {"dump"});
  CHECK(all.status == exited(0));
  CHECK(contains(all.out, fmt::format("rank 0 (pid {}, ", one->pid())));
  CHECK(contains(all.out, "`exchange` for "));
  CHECK(contains(all.out, fmt::format("rank 1 (pid {}, ", other->pid())));
  CHECK(all.out.find("rank 0 (") < all.out.find("rank 1 ("));
  CHECK(contains(all.out, "`load` for "));
  CHECK(contains(all.out, "Threads\n"));
  CHECK(JsonLine(run_client(server, {"dump", "--json"}).out).integer("omitted") == 0);
  const Finished of_pid =
      run_client(server, {"dump", "--json", "--pid", std::to_string(one->pid())});
  CHECK(of_pid.status == exited(0));
  CHECK(contains(of_pid.out, fmt::format("\"workers\":[{{\"pid\":{},", one->pid())));
  check_failure(run_client(server, {"dump", "--rank", "7"}), 6,
                "no watched worker has rank 7: expected 0, 1");
  CHECK(one->ask("release exchange") == "yes");
  CHECK(other->ask("release load") == "yes");
  CHECK(count(server.records(), "evidence") == 0);
}

TEST_CASE("of four ranks of which one hangs in `load`, show names that one first") {
  const Server server;
  std::vector<std::unique_ptr<Worker>> ranks;
  for (const int rank : {0, 1, 2, 3}) {
    ranks.push_back(ranked_worker(server, rank));
  }
  for (const int rank : {0, 1, 3}) {
    server.send(acquire_far(ranks[static_cast<std::size_t>(rank)]->pid(), "exchange"));
  }
  server.send(acquire(ranks[2]->pid(), "load", 300ms));
  const std::string id = kill_of(server, *ranks[2]).text("id");

  const std::string page = unwrapped(run_client(server, {"show", "last"}).out);
  CAPTURE(page);
  CHECK(page.starts_with(fmt::format("rank 2 (pid {}, ", ranks[2]->pid())));
  const std::size_t odd = page.find("\n  rank 2 in `load` for ");
  const std::size_t others = page.find("\n  ranks 0, 1, 3 in `exchange` for ");
  REQUIRE(odd != std::string::npos);
  REQUIRE(others != std::string::npos);
  CHECK(odd < others);
  CHECK(page.find(", this one, the odd one out\n", odd) < others);
  CHECK(contains(page, fmt::format("First to expire: rank 2 (pid {}, ", ranks[2]->pid())));
  CHECK(contains(page, id));
}

TEST_CASE("the record of an incident has what its workers did before, and report draws it") {
  const Server server;
  const auto hung = client_worker(server.dir());
  const auto other = client_worker(server.dir());
  for (int step = 0; step < 3; ++step) {
    CHECK(visit_scope(*hung, "forward", 1h));
    CHECK(visit_scope(*other, "forward", 1h));
  }
  CHECK(other->ask("open exchange 3600000") == "yes");
  hung->tell("open load 200");
  const std::string id = kill_of(server, *hung).text("id");

  const Record incident = server.wait_for("incident");
  std::multiset<std::int64_t> pids;
  for (const simdjson::dom::object entry : incident.array("ended_scopes")) {
    CHECK(std::string_view(entry["scope"]) == "forward");
    pids.insert(std::int64_t{entry["pid"]});
    double last_ago_s = std::numeric_limits<double>::infinity();
    std::size_t count = 0;
    for (const simdjson::dom::array scope : simdjson::dom::array{entry["ended"]}) {
      const double ago_s{scope.at(0)};
      const double took_s{scope.at(1)};
      CHECK(ago_s > 0.2);  // before the scope that has expired was opened
      CHECK(ago_s < last_ago_s);
      CHECK(took_s > 0);
      last_ago_s = ago_s;
      ++count;
    }
    CHECK(count == 3);
  }
  CHECK(pids == std::multiset<std::int64_t>{hung->pid(), other->pid()});
  CHECK(incident.integer("ended_omitted") == 0);

  const std::string path = server.temp().path("hang.html");
  CHECK(run_client(server, {"report", id, "-o", path}).out == path + "\n");
  const std::string html = read_file(path);
  CHECK(contains(html, fmt::format("<h1>pid {}", hung->pid())));
  CHECK(contains(html, "<g class=expired><title>load: "));
  CHECK(contains(html, "<g class=open><title>exchange: "));
  CHECK(contains(html, "<g class=ended><title>forward: "));
}

TEST_CASE("suggest does not count the wait of a healthy worker for one that is killed") {
  const Server server({"--evidence", "none"});
  const auto healthy = client_worker(server.dir(), {}, {{"RANK", "0"}});
  const auto hung = client_worker(server.dir(), {}, {{"RANK", "1"}});
  CHECK(visit_scope(*healthy, "exchange", 1h));
  CHECK(healthy->ask("open exchange 3600000") == "yes");
  hung->tell("open forward 20");
  CHECK(kill_of(server, *hung).text("scope") == "forward");
  CHECK(healthy->ask("release exchange") == "yes");
  healthy->exit();
  server.wait_for("worker_ended", healthy->pid());
  const Finished suggested = run_client(server, {"suggest", "--format", "json"});
  CHECK(suggested.status == exited(0));
  CHECK(contains(suggested.out, R"({"scope":"exchange","count":0,"firsts":1,)"));
  CHECK(contains(suggested.err,
                 "1 worker ended within two minutes after an expiry of the same job: the longest "
                 "scopes of these are left out\n"));
}

// Two hundred scopes of a millisecond at most have a timeout of an hour. With the file that
// `suggest` writes, a hang of the same code is killed after a second.
TEST_CASE("the file that suggest writes finds a hang before the timeout in the code would") {
  const Server server({"--evidence", "none"});
  const auto healthy = client_worker(server.dir());
  for (int i = 0; i < 200; ++i) {
    CHECK(visit_scope(*healthy, "step", 1h));
  }
  const Finished suggested =
      run_client(server, {"suggest", "--format", "toml", "--floor", "100ms"});
  REQUIRE(suggested.status == exited(0));
  CHECK(contains(suggested.out, "and the workers that were alive\n"));
  const std::string path = server.temp().path("timeouts.toml");
  write_file(path, suggested.out);
  const auto hung = client_worker(server.dir(), {}, {{"FILETIMER_TIMEOUTS", path}});
  hung->tell("open step 3600000");
  CHECK(hung->status() == killed_by(SIGKILL));
  const Record expired = server.wait_for("expired", hung->pid());
  CHECK(expired.number("timeout_s") < 60);
  CHECK(expired.number("code_timeout_s") == 3600);
}
