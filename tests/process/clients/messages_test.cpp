// The messages of client and server by --log-level and $FILETIMER_LOG_LEVEL.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <csignal>

#include "common/posix.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/children.hpp"

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

TEST_CASE("client and server log the steps of a rendezvous at level debug only") {
  const TempFolder temp;
  Server server(temp, {"--log-level", "debug"});
  Child silent(rendezvous(server, temp, 0, 2, "20s"));
  Child verbose(rendezvous(server, temp, 1, 2, "20s", {{"FILETIMER_LOG_LEVEL", "debug"}}));
  CHECK(silent.status() == exited(0));
  CHECK(verbose.status() == exited(0));
  CHECK(read_file(temp.path("err0")).empty());
  const std::string logged = read_file(temp.path("err1"));
  CAPTURE(logged);
  const std::string prefix = fmt::format("filetimer[{}] debug: ", verbose.pid());
  CHECK(contains(logged, prefix + "request 'rendezvous' to '" + server.fifo() + "': waiting 1m"));
  CHECK(contains(logged, prefix + "request 'rendezvous': granted after "));
  CHECK(contains(logged, prefix + "request 'rendezvous': done after "));
  server.wait_for_message(
      fmt::format("rendezvous 'epoch': rank 1 of 2 joined (pid {}), granted 20s", verbose.pid()));
  server.wait_for_message("rendezvous 'epoch': round 1 is full after ");
  const Child again(rendezvous(server, temp, 1, 2, "20s"));
  const std::string joined = "rendezvous 'epoch': rank 1 of 2 joined";
  server.wait_for_message(fmt::format("{} (pid {})", joined, again.pid()));
  Child twice(rendezvous(server, temp, 1, 2, "20s"));
  CHECK(twice.status() == exited(2));
  server.wait_for_message(fmt::format(
      "rendezvous 'epoch': rank 1 is refused (pid {}): rank 1 has joined", twice.pid()));
  again.signal(SIGKILL);
  server.wait_for_message("rendezvous 'epoch': rank 1 left\n");
  const Child drained(rendezvous(server, temp, 0, 2, "20s"));
  server.wait_for_message(fmt::format("(pid {}), granted", drained.pid()));
  CHECK(run_client(temp, server, {"drain"}).status == exited(0));
  server.wait_for_message("rendezvous 'epoch': 1 of 2 ranks refused: the server is draining\n");
  CHECK(run_client(temp, server, {"shutdown", "--mode", "now"}).status == exited(0));
  server.wait_for_message("info: shutdown: now\n");
}

TEST_CASE("messages that go to the journal have its levels in front, and no others do") {
  const TempFolder temp;
  const filetimer::UniqueFd stream(
      ::open(temp.path("stream").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat status {};
  REQUIRE(::fstat(stream.get(), &status) == 0);
  const Environment environment{
      {"JOURNAL_STREAM", fmt::format("{}:{}", status.st_dev, status.st_ino)}};
  Worker worker("block");
  const auto spare_worker_of = [&](Server& server) {
    server.send("no request\n" + acquire_past(worker.pid(), "step", 0));
    (void)server.wait_for("killed", worker.pid());
    return server.stop();
  };
  Server server(
      temp, {.args = {"--log-level", "debug"}, .environment = environment, .err_fd = stream.get()});
  CHECK(spare_worker_of(server) == exited(0));
  const std::string logged = read_file(temp.path("stream"));
  CAPTURE(logged);
  CHECK(contains(logged, fmt::format("<7>watching pid {}", worker.pid())));
  CHECK(contains(logged, fmt::format("<6>pid {} (test_worker) expired", worker.pid())));
  CHECK(contains(logged, "<4>1 request rejected"));
  CHECK_FALSE(contains(logged, "timer_server: "));
  Server elsewhere(temp, {.environment = environment, .folder = "elsewhere"});
  CHECK(spare_worker_of(elsewhere) == exited(0));
  CHECK(contains(elsewhere.err(), "timer_server: info: pid "));
}

TEST_CASE("messages that standard error does not take are kept, the latest 256 at most") {
  const TempFolder temp;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const filetimer::UniqueFd read_end(ends[0]);
  filetimer::UniqueFd write_end(ends[1]);
  const int room = ::fcntl(read_end.get(), F_SETPIPE_SZ, 4096);
  write_all(write_end.get(), std::string(static_cast<std::size_t>(room), 'x'));
  Server server(temp, {.args = {"--log-level", "debug"}, .err_fd = write_end.get()});
  write_end.reset();
  std::vector<std::unique_ptr<filetimer::Child>> workers;
  for (int i = 0; i < 300; ++i) {
    workers.push_back(std::make_unique<filetimer::Child>());
    server.send(acquire_far(workers.back()->pid(), "step"));
  }
  server.barrier();
  server.process().signal(SIGUSR1);
  std::string written;
  char bytes[4096];
  while (!contains(written, "got SIGUSR1")) {
    const ssize_t got = ::read(read_end.get(), bytes, sizeof bytes);
    REQUIRE(got > 0);
    written.append(bytes, static_cast<std::size_t>(got));
  }
  int watched = 0;
  for (std::size_t at = 0; (at = written.find(": watching pid", at)) != std::string::npos; ++at) {
    ++watched;
  }
  CHECK(watched <= 256);
  CHECK(watched > 200);
}

TEST_CASE("a server says which workers it watches, what expires, and how it ends") {
  const TempFolder temp;
  Server server(temp,
                {"--log-level", "debug", "--evidence-command", "true", "--on-expiry", "true"});
  const auto paged = page_worker(server.dir(), "w-1");
  REQUIRE(paged->ask("hint") == "ok");
  Worker hung("block");
  server.send("no request\n" + acquire_past(paged->pid(), "mild", 0) +
              acquire_past(hung.pid(), "load"));
  CHECK(hung.status() == killed_by(SIGKILL));
  const std::string id = server.wait_for("hook", hung.pid()).text("id");
  const std::string mild = server.wait_for("hook", paged->pid()).text("id");
  const std::string first =
      server.wait_for([](const Record& r) { return r.is("evidence_command"); }).text("id");
  server.process().signal(SIGUSR1);
  const std::string name = fmt::format("pid {} (test_worker)", hung.pid());
  for (const std::string& message :
       {fmt::format("debug: watching pid {} (test_worker)\n", hung.pid()),
        fmt::format("debug: page 'w-1' belongs to pid {}\n", paged->pid()),
        std::string("warning: 1 request rejected, the last one because: "),
        "info: " + name + " expired in 'load' after ", ": to be sent SIGKILL (" + id + ")\n",
        ": spared, signal 0 (" + mild + ")\n", "info: " + name + " is dead (" + id + ")\n",
        "debug: --on-expiry for " + id + ": started as pid ",
        "debug: --evidence-command for " + first + ": started as pid ",
        "debug: --evidence-command for " + first + ": exited, exit status 0",
        "debug: --on-expiry for " + id + ": exited, exit status 0",
        std::string("debug: got SIGUSR1\n")}) {
    server.wait_for_message(message);
  }
}

TEST_CASE("--log-level wins over the variable, and an unknown level is bad usage") {
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
  const Finished verbose = run({"ping", "--log-level", "debug"}, "error");
  CHECK(verbose.status == exited(0));
  CHECK(contains(verbose.err, "debug: request 'ping': done after "));
  CHECK(contains(run({"run", "--log-level", "info", "--", "true"}, "").err,
                 "info: connected to the timer server at '" + server.fifo() + "'"));
}
