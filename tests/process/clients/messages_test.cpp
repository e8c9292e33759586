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
  const Finished wrong = run({"ping"}, "loud");
  CHECK(wrong.status == exited(2));
  CHECK(wrong.err == "timer_client: ping: $FILETIMER_LOG_LEVEL: " + expected);
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
