// What workers do now, asked of a real server. No worker is killed.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/proc_files.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;

namespace {

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::unique_ptr<Worker> ranked_worker(const Server& server, const std::string& rank) {
  auto worker = std::make_unique<Worker>(
      "", Worker::Setup{.environment = {{"FILETIMER_DIR", server.dir()}, {"RANK", rank}},
                        .program = {client_worker_path()}});
  REQUIRE(worker->ask("connect") == "yes");
  return worker;
}

}  // namespace

// Their evidence takes time, and is not what is shown here.
TEST_CASE("a dump of many workers has those in the least common scopes, and counts the others") {
  constexpr std::size_t kWorkers = 52;  // four more than an answer has
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  const Worker family("family", {.args = {std::to_string(kWorkers)}});
  const std::vector<pid_t> pids = filetimer::children_of(family.pid(), family.pid());
  REQUIRE(pids.size() == kWorkers);
  // The answer is longer than a pipe has room for.
  std::string lines;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    for (int outer = 0; outer < 8; ++outer) {
      lines += acquire_far(pids[i], fmt::format("outer {} {:0200}", outer, 0));
    }
    const bool is_usual = i + 2 < kWorkers;
    lines += acquire_far(pids[i], is_usual ? "exchange" : fmt::format("odd {}", i));
  }
  CHECK(contains(run_client(temp, server, {"dump"}).err, "no worker is watched"));
  server.send(lines);
  REQUIRE(run_client(temp, server, {"ping"}).status == exited(0));  // the requests were read
  const Finished dumped = run_client(temp, server, {"dump", "--json"});
  CHECK(dumped.status == exited(0));
  CHECK(dumped.out.size() > 65'536);
  const JsonLine answer(dumped.out);
  CHECK(answer.array("workers").size() == kWorkers - 4);
  CHECK(answer.integer("omitted") == 4);
  for (std::size_t i = kWorkers - 2; i < kWorkers; ++i) {
    CHECK(contains(dumped.out, fmt::format("\"odd {}\"", i)));
  }
  const Finished none = run_client(temp, server, {"dump", "--pid", "1"});
  CHECK(none.status == exited(6));
  CHECK(contains(none.err, "no watched worker has pid 1: expected "));
  CHECK(contains(none.err, fmt::format(" and {} more", kWorkers - 16)));
  CHECK(contains(run_client(temp, server, {"dump", "--rank", "1"}).err,
                 "no watched worker has a rank"));
}

TEST_CASE("dump shows where the workers are, and they go on") {
  const TempFolder temp;
  Server server(temp);
  const auto one = ranked_worker(server, "0");
  const auto other = ranked_worker(server, "1");
  CHECK(one->ask("open exchange 3600000") == "yes");
  CHECK(other->ask("open load 3600000") == "yes");
  // A side thread of the server reads the ranks.
  Finished of_rank;
  CHECK(wait_until([&] {
    of_rank = run_client(temp, server, {"dump", "--rank", "1"});
    return of_rank.status == exited(0) &&
           run_client(temp, server, {"dump", "--rank", "0"}).status == exited(0);
  }));
  CHECK(contains(of_rank.out, "`load` for "));
  CHECK_FALSE(contains(of_rank.out, "exchange"));
  const Finished all = run_client(temp, server, {"dump"});
  CHECK(all.status == exited(0));
  CHECK(contains(all.out, fmt::format("rank 0 (pid {}, ", one->pid())));
  CHECK(contains(all.out, "`exchange` for "));
  CHECK(contains(all.out, fmt::format("rank 1 (pid {}, ", other->pid())));
  CHECK(contains(all.out, "`load` for "));
  CHECK(contains(all.out, "Threads\n"));
  CHECK(JsonLine(run_client(temp, server, {"dump", "--json"}).out).integer("omitted") == 0);
  const Finished of_pid =
      run_client(temp, server, {"dump", "--json", "--pid", std::to_string(one->pid())});
  CHECK(of_pid.status == exited(0));
  CHECK(contains(of_pid.out, fmt::format("\"workers\":[{{\"pid\":{},", one->pid())));
  const Finished none = run_client(temp, server, {"dump", "--rank", "7"});
  CHECK(none.status == exited(6));
  CHECK(contains(none.err, "no watched worker has rank 7: expected 0, 1"));
  CHECK(one->ask("release exchange") == "yes");
  CHECK(other->ask("release load") == "yes");
  for (const Record& record : server.records()) {
    CHECK_FALSE(record.is("evidence"));
  }
}
