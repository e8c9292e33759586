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

namespace {

std::int64_t stop_and_count(Server& server, const char* what) {
  REQUIRE(server.stop() == exited(0));
  for (const Record& record : server.records()) {
    if (record.is("server_stopped")) {
      return record.integer(what);
    }
  }
  FAIL("no server_stopped record");
  return -1;
}

std::string without_newline(std::string line) {
  line.pop_back();
  return line;
}

}  // namespace

TEST_CASE("only a bad line is rejected, and the good lines around it count") {
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  Worker target("block");
  const std::string good = without_newline(acquire_past(target.pid(), "bad"));
  // tests/common/wire_test.cpp has the other refusals and their reasons.
  const std::vector<std::string> bad_lines{
      "not json",
      "",
      good + std::string(1, '\0'),
      good + good,
      "{\"version\": 2" + good.substr(13),
      without_newline(acquire_past(target.pid(), "no such signal", 65))};
  for (const std::string& bad : bad_lines) {
    CAPTURE(bad);
    Worker before("block");
    Worker after("block");
    server.send(acquire_past(before.pid(), "s") + bad + "\n" + acquire_past(after.pid(), "s"));
    CHECK(before.status() == killed_by(SIGKILL));
    CHECK(after.status() == killed_by(SIGKILL));
  }
  CHECK(target.is_alive());
  CHECK(stop_and_count(server, "rejected") == static_cast<std::int64_t>(bad_lines.size()));
}

TEST_CASE("a wake-up message needs the same version as a request") {
  const TempFolder temp;
  Server server(temp, {"--max-interval", "1h"});  // no sweep finds the page
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 0 forward 1");
  for (const char* version : {"", R"("version": 2, )", R"("version": "1", )"}) {
    server.send(fmt::format(R"({{{}"x_page": "w-1"}})"
                            "\n",
                            version));
  }
  server.barrier();
  CHECK(worker->is_alive());
  CHECK_FALSE(exists(server.dir() + "/scopes/.owners/w-1"));
  server.send(R"({"version": 1, "x_page": "w-1"})"
              "\n");
  CHECK(worker->status() == killed_by(SIGKILL));
  CHECK(stop_and_count(server, "rejected") == 3);
}

TEST_CASE("a rejected line is recorded with the reason and its first 200 bytes") {
  const TempFolder temp;
  Server server(temp);
  server.send("no json at all " + std::string(1000, 'x') + "\n");
  const Record record = server.wait_for([](const Record& r) { return r.is("rejected"); });
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

TEST_CASE("a flood of bad lines makes few records, and every bad line is counted") {
  const TempFolder temp;
  Server server(temp);
  for (int i = 0; i < 100; ++i) {
    std::string lines;
    for (int j = 0; j < 100; ++j) {
      lines += "bad\n";
    }
    server.send(lines);
  }
  server.barrier();
  CHECK(stop_and_count(server, "rejected") == 10'000);
  std::int64_t counted = 0;
  for (const Record& record : server.records()) {
    counted += record.is("rejected") ? record.integer("count") : 0;
  }
  CHECK(counted == 10'000);
  CHECK(count(server.records(), "rejected") < 100);
}

TEST_CASE("a line without its newline does not spoil the next writer's line") {
  const TempFolder temp;
  Server server(temp);
  Worker half("block");
  const std::string whole = without_newline(acquire_past(half.pid(), "s"));
  const std::vector<std::string> fragments{"{",
                                           "garbage",
                                           whole.substr(0, 20),
                                           whole.substr(0, 60),
                                           whole.substr(0, whole.size() - 1),
                                           whole.substr(0, whole.find("\"pid\"")),
                                           std::string(5000, 'x'),
                                           std::string(20'000, 'x'),
                                           std::string(4096, '{')};
  for (const std::string& fragment : fragments) {
    CAPTURE(fragment.size());
    for (const bool together : {true, false}) {
      Worker next("block");
      const std::string line = acquire_past(next.pid(), "s");
      if (together) {
        server.send(fragment + line);
      } else {
        server.send(fragment);
        server.send(line);
      }
      CHECK(next.status() == killed_by(SIGKILL));
    }
  }
  CHECK(half.is_alive());
  CHECK(stop_and_count(server, "rejected") == static_cast<std::int64_t>(2 * fragments.size()));
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

TEST_CASE("two writers with lines of 4,096 bytes lose none") {
  const TempFolder temp;
  Server server(temp);
  Worker one("long-lines", {.args = {server.fifo(), "300", "4096"}});
  Worker other("long-lines", {.args = {server.fifo(), "300", "4096"}});
  CHECK(one.line() == "done");
  CHECK(other.line() == "done");
  server.barrier();
  CHECK(one.is_alive());
  CHECK(other.is_alive());
  REQUIRE(server.stop() == exited(0));
  const Record stopped = server.records().back();
  REQUIRE(stopped.is("server_stopped"));
  CHECK(stopped.integer("rejected") == 0);
  // 300 acquires and 299 releases of each writer, and the request of the barrier.
  CHECK(stopped.integer("requests") == 2 * 599 + 1);
  CHECK(stopped.array("left").size() == 2);
}

TEST_CASE("2,000 scopes opened and closed in a tight loop are all read, and none expires") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("pairs", {.args = {server.fifo(), "2000"}});
  CHECK(worker.line() == "done");
  server.barrier();
  CHECK(worker.is_alive());
  REQUIRE(server.stop() == exited(0));
  const Record stopped = server.records().back();
  CHECK(stopped.integer("requests") == 4001);
  CHECK(stopped.integer("rejected") == 0);
  CHECK(stopped.array("left").size() == 0);
  CHECK(count(server.records(), "expired", worker.pid()) == 0);
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
    CHECK(stop_and_count(server, "rejected") == 1);
    CHECK(count(server.records(), "expired") == 1);  // the barrier's
    const Record record = server.wait_for([](const Record& r) { return r.is("rejected"); });
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
