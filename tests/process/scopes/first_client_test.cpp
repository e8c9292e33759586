// Workers that connect before a server starts, while it starts, or after a restart, and a runtime
// directory that is removed and made again.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <system_error>

#include "tests/process/worker.hpp"

using namespace std::chrono_literals;
using namespace filetimer::testing;
using filetimer::Instant;

namespace {

// client_worker, in namespaces of its own if options of unshare(1) are given.
std::unique_ptr<Worker> start_worker(const std::string& dir,
                                     const std::vector<std::string>& options = {}) {
  return std::make_unique<Worker>(
      Worker::Setup{.environment = {{"FILETIMER_DIR", dir}},
                    .program = options.empty() ? std::vector{program_path("client_worker")}
                                               : unshared(options, program_path("client_worker"))});
}

std::unique_ptr<Worker> first_worker(const std::string& dir,
                                     const std::vector<std::string>& options = {}) {
  auto worker = start_worker(dir, options);
  REQUIRE(worker->ask("connect-early") == "yes");
  return worker;
}

// Returns whether the directory has a page that is not truncated.
bool has_page(const std::string& dir) {
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/scopes", ec)) {
    if (entry.is_regular_file() && entry.path().filename().string()[0] != '.' &&
        entry.file_size() > 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("a worker that connects first has statistics, and wakes the server, as any other does") {
  const TempFolder temp;
  const auto worker = first_worker(temp.path("run"));
  visit_scope(*worker);
  visit_scope(*worker);
  Server server(temp, {"--max-interval", "1h"});
  visit_scope(*worker);
  const Finished listed = run_client(server, {"list", "--stats", "--json"});
  CHECK(contains(listed.out, "\"scope\":\"visit\""));
  CHECK(contains(listed.out, "\"count\":3"));
  worker->tell("open late 200");  // the server would look in an hour
  CHECK(kill_of(server, *worker).text("scope") == "late");
}

TEST_CASE("no deadline is missed if workers and a server start at the same time") {
  constexpr int kRounds = 5;
  constexpr int kWorkers = 6;
  for (int round = 0; round < kRounds; ++round) {
    const TempFolder temp;
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < kWorkers; ++i) {
      workers.push_back(start_worker(temp.path("run")));
    }
    for (const auto& worker : workers) {
      worker->tell("connect-early");
      worker->tell("open step 300");
    }
    const Server server(temp, {"--max-interval", "1h"});  // no sweep finds a missed scope
    for (const auto& worker : workers) {
      CHECK(kill_of(server, *worker).text("scope") == "step");
    }
  }
}

TEST_CASE("a worker that connects first is watched by every server that follows") {
  const TempFolder temp;
  const auto worker = first_worker(temp.path("run"));
  std::optional<Server> server;
  server.emplace(temp);
  visit_scope(*worker);
  server->kill();
  CHECK(worker->ask("open between 60000") == "yes");
  server.emplace(temp);
  CHECK(worker->ask("release between") == "yes");
  CHECK(server->stop() == exited(0));
  CHECK(worker->ask("open hangs 100") == "yes");
  server.emplace(temp);
  CHECK(kill_of(*server, *worker).text("scope") == "hangs");
}

TEST_CASE("a server in another pid namespace leaves the page of a worker to the next one") {
  FILETIMER_SKIP_IF(!can_unshare(kOwnPidNamespace), kNoPidNamespace);
  const TempFolder temp;
  const auto worker = first_worker(temp.path("run"));
  std::optional<Server> server(std::in_place, temp);
  visit_scope(*worker);
  CHECK(worker->ask("open far 60000") == "yes");
  server->barrier();
  server->kill();
  const Finished other =
      run_unshared(kOwnPidNamespace, server_path(),
                   {"--dir", temp.path("run"), "--log", temp.path("other"), "--", "true"});
  CHECK(other.status == exited(0));
  const Records records = read_log(temp.path("other"));
  CHECK(count(records, "left_open") == 0);
  CHECK(count(records, "worker_ended") == 0);
  CHECK(count(records, "rejected") == 1);
  server.emplace(temp);
  CHECK(worker->ask("release far") == "yes");
  worker->tell("open hangs 100");
  CHECK(kill_of(*server, *worker).text("scope") == "hangs");
}

TEST_CASE("a server whose directory is removed keeps watching open scopes, and lists later ones") {
  Server server({"--max-interval", "100ms"});
  const auto worker = client_worker(server.dir());
  const auto other = client_worker(server.dir());
  visit_scope(*worker);
  visit_scope(*other);
  CHECK(worker->ask("open before 3000") == "yes");
  server.barrier();  // it has opened the page
  // The server may put a file into a directory while it is being removed.
  REQUIRE(wait_until([&] {
    std::error_code error;
    std::filesystem::remove_all(server.dir(), error);
    return !error;
  }));
  REQUIRE(wait_until([&] {
    visit_scope(*other);
    return has_page(server.dir());
  }));
  other->tell("open after 500");
  CHECK(kill_of(server, *other).text("scope") == "after");
  CHECK(kill_of(server, *worker).text("scope") == "before");
}

TEST_CASE("a worker of another pid namespace that connects first is watched, and no other is") {
  const TempFolder temp;
  FILETIMER_SKIP_IF(!can_unshare(kOwnPidNamespace), kNoPidNamespace);
  const auto worker = first_worker(temp.path("run"), kOwnPidNamespace);
  CHECK(worker->ask("open early 60000") == "yes");
  const Server server(temp);
  visit_scope(*worker);
  worker->tell("open late 100");
  const Record expired = server.wait_for("expired", "late");
  CHECK(expired.array("open_scopes").size() == 2);
  CHECK(expired.integer("pid") != 1);
  CHECK(expired.text("comm") == "client_worker");
  CHECK(count(server.records(), "expired", 1) == 0);
  worker->status();  // unshare ends with its child
}
