// The example hooks as their users run them, with a scontrol and a web server of the test's own.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

namespace filetimer::testing {
namespace {

std::string example(const std::string& name) {
  return std::string(FILETIMER_EXAMPLES_DIR) + "/" + name;
}

// A server with the example as its hook, and a scontrol that notes what it is asked.
Server::Setup requeuing(const TempFolder& temp, Environment environment,
                        std::vector<std::string> more = {}) {
  REQUIRE(::mkdir(temp.path("bin").c_str(), 0755) == 0);
  write_file(temp.path("bin/scontrol"), "#!/bin/sh\necho \"$@\" >> " + temp.path("asked") + "\n");
  REQUIRE(::chmod(temp.path("bin/scontrol").c_str(), 0755) == 0);
  environment["PATH"] = temp.path("bin") + ":/usr/bin:/bin";
  Server::Setup setup;
  setup.args = {"--on-expiry", example("requeue_slurm_job")};
  setup.args.insert(setup.args.end(), more.begin(), more.end());
  setup.environment = std::move(environment);
  return setup;
}

Record hook_of_expiry(const Server& server, const Environment& workers_environment = {}) {
  Worker worker("block", {.environment = workers_environment});
  server.send(acquire_past(worker.pid(), "forward"));
  return server.wait_for("hook", worker.pid());
}

TEST_CASE("The Slurm job that the killed worker belongs to is requeued") {
  const TempFolder temp;
  const Server server(temp, requeuing(temp, {{"SLURM_JOB_ID", "11"}}));
  CHECK(hook_of_expiry(server, {{"SLURM_JOB_ID", "4711"}}).integer("exit_status") == 0);
  CHECK(read_file(temp.path("asked")) == "requeue 4711\n");
}

TEST_CASE("Of a worker that names no Slurm job it is the server's") {
  const TempFolder temp;
  const Server server(temp, requeuing(temp, {{"SLURM_JOB_ID", "11"}}));
  CHECK(hook_of_expiry(server, {{"TORCHELASTIC_RUN_ID", "run a"}}).integer("exit_status") == 0);
  CHECK(read_file(temp.path("asked")) == "requeue 11\n");
}

TEST_CASE("Nothing is requeued for who was spared, past the last try, or outside Slurm") {
  const TempFolder temp;
  SUBCASE("spared") {
    const Server server(temp, requeuing(temp, {{"SLURM_JOB_ID", "11"}}, {"--dry-run"}));
    CHECK(hook_of_expiry(server).integer("exit_status") == 0);
  }
  SUBCASE("past the last try") {
    const Server server(temp,
                        requeuing(temp, {{"SLURM_JOB_ID", "11"}, {"SLURM_RESTART_COUNT", "3"}}));
    CHECK(hook_of_expiry(server).integer("exit_status") == 0);
  }
  SUBCASE("outside Slurm") {
    const Server server(temp, requeuing(temp, {}));
    const Record hook = hook_of_expiry(server);
    CHECK(hook.integer("exit_status") == 1);
    CHECK(hook.text("output").find("no Slurm job") != std::string::npos);
  }
  CHECK_FALSE(exists(temp.path("asked")));
}

TEST_CASE("The records of an expiry are posted to the web server that was named") {
  const TempFolder temp;
  Child sink({.argv = {"/bin/sh", "-c", "exec python3 \"$@\"", "sh", FILETIMER_HTTP_SINK,
                       temp.path("port"), temp.path("request")},
              .err = temp.path("err")});
  const bool listens = wait_until([&] { return exists(temp.path("port")) || !sink.is_alive(); });
  REQUIRE_MESSAGE((listens && exists(temp.path("port"))), read_file(temp.path("err")));
  const std::string url = fmt::format("http://127.0.0.1:{}/hang", read_file(temp.path("port")));
  const Server server(temp, {.args = {"--on-expiry", example("post_webhook")},
                             .environment = {{"WEBHOOK_URL", url}, {"no_proxy", "127.0.0.1"}}});
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "forward"));
  const Record hook = server.wait_for("hook", worker.pid());
  CHECK_MESSAGE(hook.integer("exit_status") == 0, hook.text("output"));
  CHECK(sink.status() == exited(0));
  CHECK(read_file(temp.path("request")) ==
        "/hang dead\n" + server.wait_for("expired", worker.pid()).line() + "\n" +
            server.wait_for("killed", worker.pid()).line() + "\n");
}

TEST_CASE("A web server that can't be reached is told in the hook's record") {
  const TempFolder temp;
  // Port 1: nobody listens there.
  const Server server(
      temp, {.args = {"--on-expiry", example("post_webhook")},
             .environment = {{"WEBHOOK_URL", "http://127.0.0.1:1/"}, {"no_proxy", "127.0.0.1"}}});
  const Record hook = hook_of_expiry(server);
  CHECK(hook.integer("exit_status") == 7);  // curl's "could not connect"
  CHECK(hook.text("output").find("curl") != std::string::npos);
}

}  // namespace
}  // namespace filetimer::testing
