// --evidence-command: once for each incident, before the signals, and never for longer than it may
// take.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include "common/proc_files.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

Server::Setup with_command(std::string command, std::vector<std::string> more = {}) {
  std::vector<std::string> args{
      "--evidence-command", std::move(command), "--evidence", "none", "--evidence-timeout", "20s"};
  args.insert(args.end(), more.begin(), more.end());
  return {.args = std::move(args)};
}

}  // namespace

TEST_CASE("the output of the evidence command is recorded before the signal is sent") {
  const TempFolder temp;
  const Server server(
      temp,
      with_command("sleep 0.3; echo \"$FILETIMER_SCOPE of $FILETIMER_PID: $FILETIMER_VERDICT\"; "
                   "echo more >&2; exit 3"));
  Worker worker("block", {.environment = {{"RANK", "3"}}});
  server.send(acquire_far(worker.pid(), "load"));
  wait_for_rank(temp, server, worker, 3);
  server.send(acquire_past(worker.pid(), "load"));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record killed = server.wait_for("killed", worker.pid());
  const Record command = server.wait_for("evidence_command");
  const Record expired = server.wait_for("expired", worker.pid());
  CHECK(command.text("output") == fmt::format("load of {}: expired\nmore\n", worker.pid()));
  CHECK(command.integer("output_bytes") ==
        static_cast<std::int64_t>(command.text("output").size()));
  CHECK(command.text("result") == "exited");
  CHECK(command.integer("exit_status") == 3);
  server.wait_for_message(
      fmt::format("--evidence-command for {}: exited, exit status 3", expired.text("id")));
  CHECK(command.text("id") == expired.text("id"));
  CHECK(command.text("incident") == expired.text("incident"));
  CHECK(command.integer("rank") == 3);
  REQUIRE(killed.signals().size() == 1);
  const std::int64_t sent = killed.array("signals").at(0)["mono_ns"].get_int64().value();
  CHECK(command.integer("mono_ns") <= sent);
  const Finished shown = run_client(temp, server, {"show", expired.text("id")});
  CHECK(shown.out.find("Evidence command (exit status 3") != std::string::npos);
  CHECK(shown.out.find(fmt::format("  load of {}: expired\n  more\n", worker.pid())) !=
        std::string::npos);
}

TEST_CASE("an evidence command that hangs is killed with all that it has started") {
  const TempFolder temp;
  const std::string pids = temp.path("pids");
  const Server server(
      temp, with_own_clocks(temp, with_command(fmt::format("sleep 1000 & echo $! $$ > {0}.new; "
                                                           "echo begun; mv {0}.new {0}; wait",
                                                           pids))
                                      .args));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "load"));
  REQUIRE(wait_until([&] { return exists(pids); }));
  set_clocks(temp, server, filetimer::Instant::now() + 21s);
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("result") == "timed_out");
  CHECK(command.text("output") == "begun\n");
  CHECK(command.number("duration_ms") >= 20'000);
  std::istringstream words(read_file(pids));
  for (pid_t pid = 0; words >> pid;) {
    CHECK(wait_until([pid] {
      const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid));
      return !stat || stat->state == 'Z';  // not every pid 1 reaps orphans
    }));
  }
}

TEST_CASE("a long output is read to its end, and its first 64 KiB are recorded") {
  const TempFolder temp;
  const Server server(temp, with_command("head -c 300000 /dev/zero | tr '\\0' x"));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "load"));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("result") == "exited");
  CHECK(command.text("output") == std::string(65536, 'x'));
  CHECK(command.integer("output_bytes") == 300000);
}

TEST_CASE("an output of any bytes is text in the record") {
  const TempFolder temp;
  const Server server(temp, with_command("printf 'a\\377\\033[2Jb\"'; kill $$"));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "load"));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("output") == "a\\xff\x1b[2Jb\"");
  CHECK(command.text("result") == "signalled");
  CHECK(command.text("name") == "SIGTERM");
  CHECK_FALSE(command.has("exit_status"));
  const Finished shown = run_client(temp, server, {"show", "last"});
  CHECK(shown.out.find('\x1b') == std::string::npos);
}

TEST_CASE("a dry run runs the evidence command, too") {
  const TempFolder temp;
  const Server server(temp, with_command("echo here", {"--dry-run"}));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "load"));
  CHECK(server.wait_for("evidence_command").text("output") == "here\n");
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "spared");
}

TEST_CASE("a server that stops kills the worker, and kills and records its evidence command") {
  const TempFolder temp;
  Server server(temp, with_command("echo begun; sleep 1000", {"--evidence-timeout", "100s"}));
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "load"));
  server.wait_for("expired", worker.pid());
  server.stop();
  CHECK(server.wait_for("evidence_command").text("result") == "stopped");
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "dead");
  CHECK(worker.status() == killed_by(SIGKILL));
}
