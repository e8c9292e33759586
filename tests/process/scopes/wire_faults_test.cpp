// Requests that must not harm a server (docs/protocol.md): broken and hostile lines, writers that
// hold the pipe open, and pids that must not be killed.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/users.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

TEST_CASE("a rejected line is recorded with the reason and its first 200 bytes") {
  const TempFolder temp;
  Server server(temp);
  server.send("no json at all " + std::string(1000, 'x') + "\n");
  const Record record = server.wait_for("rejected");
  CHECK(record.integer("count") == 1);
  CHECK_FALSE(record.text("reason").empty());
  CHECK(record.text("line").starts_with("no json at all xxx"));
  CHECK(record.text("line").size() <= 210);
}

TEST_CASE("a bad line right after another is recorded without a further event") {
  const TempFolder temp;
  Server server(temp, {"--max-interval", "1h"});
  for (const char* const line : {"first", "second"}) {
    server.send(std::string(line) + "\n");
    CHECK(
        server.wait_for([&](const Record& r) { return r.is("rejected") && r.text("line") == line; })
            .integer("count") == 1);
  }
}

TEST_CASE("a writer that holds the pipe open after half a line delays no deadline") {
  const TempFolder temp;
  Server server(temp, {"--max-interval", "1h"});
  Worker slow("block");
  Worker early("block");
  Worker late("block");
  const std::string line = acquire_past(slow.pid(), "s");
  server.send(acquire(early.pid(), "sent before the half line", 200ms));
  const filetimer::UniqueFd holder = open_pipe(server.fifo());
  write_all(holder.get(), line.substr(0, 40));
  CHECK(early.status() == killed_by(SIGKILL));
  server.send(acquire(late.pid(), "sent behind the half line", 50ms));
  CHECK(late.status() == killed_by(SIGKILL));
  check_prompt(server, early.pid());
  check_prompt(server, late.pid());
  // The rest of the half line is not a request, and the next whole line is one.
  write_all(holder.get(), line.substr(40));
  server.barrier();
  CHECK(slow.is_alive());
  write_all(holder.get(), line);
  CHECK(slow.status() == killed_by(SIGKILL));
}

TEST_CASE("a line whose pid is not a worker's is rejected with the reason") {
  Worker group("block");                // leads a process group of its own
  constexpr pid_t kUnused = 4'194'305;  // the largest pid of the kernel is 4,194,304
  const std::string no_worker = "expected a worker's";
  struct Refused {
    std::optional<pid_t> pid;  // none: that of the server
    int signal;                // harmless where a wrong server might send it to other processes
    std::string reason;
  };
  const std::vector<Refused> all_refused = {
      {0, SIGKILL, no_worker},
      {-1, SIGCONT, no_worker},
      {-group.pid(), SIGKILL, no_worker},
      {1, SIGCONT, no_worker},
      {std::nullopt, SIGKILL, "is this server"},
      {::getpid(), SIGCONT, "has started this server"},
      {::getppid(), SIGCONT, ::getppid() > 1 ? "has started this server" : no_worker},
      {kUnused, SIGKILL, "there is no process with pid 4194305"}};
  for (const Refused& refused : all_refused) {
    CAPTURE(refused.reason);
    const TempFolder temp;
    Server server(temp);
    server.send(version1(refused.pid.value_or(server.pid()), "s", 1, refused.signal));
    server.barrier();
    REQUIRE(server.stop() == exited(0));
    CHECK(server.records().back().integer("rejected") == 1);
    CHECK(count(server.records(), "expired") == 1);  // the barrier's
    const Record record = server.wait_for("rejected");
    CHECK(record.text("reason").find(refused.reason) != std::string::npos);
    CHECK(group.is_alive());
  }
}

TEST_CASE("root's server does not kill another user's process") {
  if (!can_become(kSomebodyElse)) {
    FILETIMER_SKIP(kCannotBecome);
  }
  const TempFolder temp;
  Server server(temp);
  Worker worker("block", {.user = kSomebodyElse});
  server.send(acquire_past(worker.pid(), "s"));
  server.barrier();
  CHECK(worker.is_alive());
  const Record rejected = server.wait_for("rejected", worker.pid());
  CHECK(rejected.text("reason").find("user") != std::string::npos);
}

TEST_CASE("a second server in the directory exits 3, names the first and disturbs nothing") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  server.send(acquire(worker.pid(), "s", 500ms));
  struct stat before {};
  REQUIRE(::stat(server.fifo().c_str(), &before) == 0);

  const Finished second = run_server(temp, {"--dir", server.dir()});
  CHECK(second.status == exited(3));
  CHECK(second.out.empty());
  CHECK(second.err.find(std::to_string(server.pid())) != std::string::npos);
  CHECK(std::count(second.err.begin(), second.err.end(), '\n') == 1);

  struct stat after {};
  REQUIRE(::stat(server.fifo().c_str(), &after) == 0);
  CHECK(after.st_ino == before.st_ino);
  CHECK(worker.status() == killed_by(SIGKILL));
  server.barrier();
  CHECK(count(server.records(), "server_started") == 1);
}

TEST_CASE("a second server with the same pipe in another directory disturbs nothing") {
  const TempFolder temp;
  Server server(temp);
  const Finished second = run_server(temp, {"--dir", temp.path("other"), "--fifo", server.fifo()});
  CHECK(second.status == exited(3));
  CHECK(second.err.find(std::to_string(server.pid())) != std::string::npos);
  server.barrier();
}
