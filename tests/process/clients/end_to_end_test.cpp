// The commands of timer_client with a real timer_server.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <csignal>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// A shell with timer_client in $T.
ExitStatus run_shell(const TempFolder& temp, const Server& server, const std::string& script) {
  return run(temp, "/bin/sh", {"-c", script},
             {{"FILETIMER_DIR", server.dir()}, {"T", client_path()}})
      .status;
}

// Returns the records of a stopped server.
std::int64_t requests_of(const Server& server) {
  const Records records = server.records();
  REQUIRE(records.back().is("server_stopped"));
  return records.back().integer("requests");
}

}  // namespace

TEST_CASE("run exits 124 when COMMAND was killed, and the record has COMMAND's name") {
  const TempFolder temp;
  Server server(temp);
  CHECK(run_client(temp, server, {"run", "--timeout", "200ms", "--", "sleep", "100"}).status ==
        exited(124));
  const Record killed = server.wait_for("killed");
  CHECK(killed.text("scope") == "sleep");
  CHECK(killed.text("comm") == "sleep");
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  const Record expired = server.wait_for("expired");
  CHECK(expired.number("timeout_s") == doctest::Approx(0.2));
  server.barrier();
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire exits 6 for a process that has started the server") {
  const TempFolder temp;
  Server server(temp);
  const Finished refused = run_client(temp, server, {"acquire", "--scope", "s", "--timeout", "1h"});
  CHECK(refused.status == exited(6));
  CHECK(contains(refused.err, fmt::format("process {} has started the timer server {}", ::getpid(),
                                          server.pid())));
}

TEST_CASE("run exits 124 when COMMAND was killed by SIGKILL after the grace period") {
  const TempFolder temp;
  Server server(temp);
  CHECK(run_client(temp, server,
                   {"run", "--timeout", "2s", "--signal", "TERM", "--grace", "100ms", "--scope",
                    "stubborn", "--", worker_path(), "ignore-term"})
            .status == exited(124));
  const Record killed = server.wait_for("killed");
  CHECK(killed.text("scope") == "stubborn");
  CHECK(killed.signals() == std::vector<int>{SIGTERM, SIGKILL});
  const std::string longest(255, 'n');
  CHECK(run_client(temp, server,
                   {"run", "--timeout", "200ms", "--scope", longest, "--", "sleep", "100"})
            .status == exited(124));
}

TEST_CASE("a COMMAND that ends in time leaves no record, however short it is") {
  const TempFolder temp;
  Server server(temp);
  for (int i = 0; i < 50; ++i) {
    CHECK(run_client(temp, server, {"run", "--timeout", "1h", "--", "true"}).status == exited(0));
  }
  CHECK(run_client(temp, server, {"run", "--timeout", "1h", "--", "sh", "-c", "sleep 0.1; exit 3"})
            .status == exited(3));
  server.barrier();
  CHECK(server.stop() == exited(0));
  CHECK(requests_of(server) == 2 * 51 + 1);  // all of them arrived; the barrier is one
  CHECK(server.records().back().array("left").size() == 0);
  const Records records = server.records();
  CHECK(count(records, "rejected") == 0);
  CHECK(count(records, "left_open") == 0);
  CHECK(count(records, "expired") == 1);  // the barrier's
}

TEST_CASE(
    "acquire in a shell sets a deadline for that shell, also after it executes another program") {
  const TempFolder temp;
  Server server(temp);
  CHECK(run_shell(temp, server, "$T acquire --scope x --timeout 300ms; exec sleep 100") ==
        killed_by(SIGKILL));
  const Record killed = server.wait_for("killed");
  CHECK(killed.text("scope") == "x");
  CHECK(killed.text("verdict") == "dead");
}

TEST_CASE(
    "a shell that releases its scope leaves nothing open, and one that does not is recorded") {
  const TempFolder temp;
  Server server(temp);
  // The shell ends after the server has read its requests, because its pid is unused afterwards.
  const std::string until_read =
      "&& $T acquire --scope marker$$ --timeout 1ms --signal 0 && until grep -q "
      "\"\\\"marker$$\\\",\\\"verdict\\\"\" $FILETIMER_DIR/expired.jsonl; do sleep 0.01; done && ";
  CHECK(run_shell(temp, server,
                  "$T acquire --scope kept --timeout 1h && $T release --scope kept " + until_read +
                      "exit 5") == exited(5));
  CHECK(run_shell(temp, server,
                  "$T acquire --scope forgotten --timeout 1h " + until_read + "exit 6") ==
        exited(6));
  const Record left = server.wait_for("left_open");
  CHECK(left.text("scope") == "forgotten");
  server.barrier();
  CHECK(count(server.records(), "left_open") == 1);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire while the server drains exits 6 and says why, but renews an open scope") {
  const TempFolder temp;
  Server server(temp);
  const Worker worker("block");
  const std::string pid = std::to_string(worker.pid());
  const auto acquire = [&](const std::string& scope, const std::string& after) {
    return run_client(temp, server,
                      {"acquire", "--scope", scope, "--timeout", after, "--pid", pid});
  };
  CHECK(acquire("kept", "1h").status == exited(0));
  CHECK(run_client(temp, server, {"shutdown", "--mode", "if_idle"}).status ==
        exited(6));  // the server has read the request
  CHECK(run_client(temp, server, {"drain"}).status == exited(0));
  const Finished refused = acquire("new", "1h");
  CHECK(refused.status == exited(6));
  CHECK(refused.err == "timer_client: 'new' is not watched: the timer server in '" + server.dir() +
                           "' is draining: it watches no new scopes\n");
  CHECK(acquire("kept", "2h").status == exited(0));
  CHECK(run_client(temp, server, {"drain", "--off"}).status == exited(0));
  CHECK(acquire("new", "1h").status == exited(0));
  server.barrier();
  const Finished list = run_client(temp, server, {"list"});
  CHECK(list.status == exited(0));
  CHECK(contains(list.out, "2 h"));
  CHECK(contains(list.out, "new"));
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire exits 6 while the server shuts down, and 4 when the server was killed then") {
  const TempFolder temp;
  Server server(temp);
  const Worker worker("block");
  server.send(acquire_far(worker.pid(), "load"));
  Child waits(
      {.argv = {client_path(), "shutdown", "--dir", server.dir()}, .err = temp.path("waits")});
  REQUIRE(wait_until([&] { return !read_file(temp.path("waits")).empty(); }));
  const std::vector<std::string> words{
      "acquire", "--scope", "new", "--timeout", "1h", "--pid", std::to_string(worker.pid())};
  const Finished refused = run_client(temp, server, words);
  CHECK(refused.status == exited(6));
  CHECK(refused.err.find("' is shutting down: it watches no new scopes\n") != std::string::npos);
  const std::string dir = server.dir();
  server.kill();
  CHECK(run_client(temp, server, words).status == exited(4));
}

TEST_CASE("acquire on a bare pipe exits 0 while the server drains") {
  const TempFolder temp;
  Server server(temp, {"--fifo", temp.path("pipe")});
  const Worker worker("block");
  CHECK(run_client(temp, server, {"drain"}).status == exited(0));
  Child child({.argv = {client_path(), "acquire", "--scope", "new", "--timeout", "1h", "--pid",
                        std::to_string(worker.pid()), "--fifo", temp.path("pipe")},
               .environment = {{"XDG_RUNTIME_DIR", temp.path("none")}}});
  CHECK(child.status() == exited(0));
  server.wait_for("rejected");
}

TEST_CASE(
    "run while the server drains runs COMMAND unwatched, says so, and exits as COMMAND does") {
  const TempFolder temp;
  Server server(temp);
  CHECK(run_client(temp, server, {"drain"}).status == exited(0));
  const Finished ran =
      run_client(temp, server, {"run", "--timeout", "20ms", "--", "sh", "-c", "sleep 0.2; exit 7"});
  CHECK(ran.status == exited(7));
  CHECK(ran.err == "timer_client: COMMAND runs unwatched: the timer server in '" + server.dir() +
                       "' is draining: it watches no new scopes\n");
  CHECK(run_client(temp, server, {"drain", "--off"}).status == exited(0));
  CHECK(run_client(temp, server, {"run", "--timeout", "20ms", "--", "sleep", "100"}).status ==
        exited(124));
  server.barrier();
  CHECK(count(server.records(), "rejected") == 0);
}
