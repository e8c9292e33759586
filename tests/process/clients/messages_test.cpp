// What client and server tell on standard error as --log-level and $FILETIMER_LOG_LEVEL have it.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/process/harness.hpp"

using namespace filetimer::testing;

namespace {

Launch rendezvous(const Server& server, const TempFolder& temp, int rank, int world,
                  const std::string& timeout, const Environment& environment = {}) {
  return {.argv = {client_path(), "rendezvous", "--rank", std::to_string(rank), "--world",
                   std::to_string(world), "--timeout", timeout, "--name", "epoch", "--dir",
                   server.dir()},
          .environment = environment,
          .err = temp.path(fmt::format("err{}", rank))};
}

}  // namespace

TEST_CASE("a rendezvous logs its steps at level debug on both sides, and nothing otherwise") {
  const TempFolder temp;
  Server server(temp, {"--log-level", "debug"});
  Child silent(rendezvous(server, temp, 0, 2, "20s"));
  Child tells(rendezvous(server, temp, 1, 2, "20s", {{"FILETIMER_LOG_LEVEL", "debug"}}));
  CHECK(silent.status() == exited(0));
  CHECK(tells.status() == exited(0));
  CHECK(read_file(temp.path("err0")).empty());
  const std::string told = read_file(temp.path("err1"));
  CAPTURE(told);
  const std::string who = fmt::format("filetimer[{}] debug: ", tells.pid());
  CHECK(contains(told, who + "rendezvous 'epoch': rank 1 of 2 joins, for 20s\n"));
  CHECK(contains(told, who + "request 'rendezvous' to '" + server.fifo() + "': waiting 1m"));
  CHECK(contains(told, who + "rendezvous 'epoch': joined, granted 20s\n"));
  CHECK(contains(told, who + fmt::format("rendezvous 'epoch': round 1 is full: 0 (pid {}), 1 (pid "
                                         "{})\n",
                                         silent.pid(), tells.pid())));
  server.wait_for_message(
      fmt::format("rendezvous 'epoch': rank 1 of 2 joined (pid {}), granted 20s", tells.pid()));
  server.wait_for_message("rendezvous 'epoch': round 1 is full after ");
}

TEST_CASE("the server logs at level debug which ranks left, were refused and joined a rendezvous") {
  const TempFolder temp;
  Server server(temp, {"--log-level", "debug"});
  {
    const Child leaves(rendezvous(server, temp, 1, 3, "20s"));
    server.wait_for_message("rendezvous 'epoch': rank 1 of 3 joined");
  }
  server.wait_for_message("rendezvous 'epoch': rank 1 left");
  Child waits(rendezvous(server, temp, 0, 2, "500ms"));
  server.wait_for_message("rendezvous 'epoch': rank 0 of 2 joined");
  Child wrong(rendezvous(server, temp, 2, 3, "20s"));
  CHECK(wrong.status() == exited(2));
  server.wait_for_message(
      fmt::format("rendezvous 'epoch': rank 2 is refused (pid {}): the world "
                  "is 3: the ranks that wait in rendezvous 'epoch' gave 2",
                  wrong.pid()));
  CHECK(waits.status() == exited(5));
  server.wait_for_message("warning: rendezvous 'epoch' failed: after ");
  Child drained(rendezvous(server, temp, 0, 2, "20s"));
  server.wait_for_message(fmt::format("rank 0 of 2 joined (pid {})", drained.pid()));
  Child drain({.argv = {client_path(), "drain", "--dir", server.dir()}});
  CHECK(drain.status() == exited(0));
  CHECK(drained.status() == exited(6));
  server.wait_for_message("rendezvous 'epoch': 1 of 2 ranks refused: the server is draining");
  Child late(rendezvous(server, temp, 0, 2, "20s"));
  CHECK(late.status() == exited(6));
  server.wait_for_message(fmt::format(
      "rank 0 is refused (pid {}): the server is draining: no new rendezvous", late.pid()));
}

TEST_CASE("--log-level wins over the variable, and a word that is none of them is bad usage") {
  const TempFolder temp;
  const Server server(temp);
  int runs = 0;
  const auto run = [&](std::vector<std::string> words, const char* variable) {
    const std::string err = temp.path(fmt::format("run-{}", ++runs));
    words.insert(words.begin(), client_path());
    Child child(
        {.argv = std::move(words),
         .environment = {{"FILETIMER_LOG_LEVEL", variable}, {"FILETIMER_DIR", server.dir()}},
         .err = err});
    const ExitStatus status = child.status();
    return Finished{status, {}, read_file(err)};
  };
  const std::string expected = "'loud': expected one of error, warning, info, debug\n";
  for (const char* command : {"ping", "status", "drain", "shutdown", "list"}) {
    CAPTURE(command);
    CHECK(run({command, "--log-level", "loud"}, "debug").status == exited(2));
    const Finished wrong = run({command}, "loud");
    CHECK(wrong.status == exited(2));
    CHECK(wrong.err ==
          fmt::format("timer_client: {}: $FILETIMER_LOG_LEVEL: {}", command, expected));
  }
  CHECK(run({"ping", "--log-level", "loud"}, "").err ==
        "timer_client: ping: --log-level: " + expected);
  CHECK(run({"run", "--log-level", "loud", "--", "true"}, "").status == exited(125));
  CHECK(run({"run", "--", "true"}, "loud").status == exited(125));
  CHECK(run({"ping"}, "error").err.empty());
  CHECK(run({"ping", "--log-level", "error"}, "loud").status == exited(0));
  const Finished told = run({"ping", "--log-level", "debug"}, "error");
  CHECK(told.status == exited(0));
  CHECK(contains(told.err, "debug: request 'ping': done after "));
  CHECK(contains(run({"run", "--log-level", "info", "--", "true"}, "").err,
                 "info: connected to the timer server at '" + server.fifo() + "'"));
}
