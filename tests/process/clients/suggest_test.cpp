// What `suggest` says of scopes, from a worker on, and how a wrong timeout is replaced by the
// suggested one.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

TEST_CASE("suggest does not count the wait of a healthy worker for one that is killed") {
  const TempFolder temp;
  const Server server(temp, {"--evidence", "none"});
  const auto healthy = client_worker(server.dir(), {}, {{"RANK", "0"}});
  const auto hung = client_worker(server.dir(), {}, {{"RANK", "1"}});
  CHECK(healthy->ask("open exchange 3600000") == "yes");
  CHECK(healthy->ask("release exchange") == "yes");
  CHECK(healthy->ask("open exchange 3600000") == "yes");
  hung->tell("open forward 20");
  CHECK(hung->status() == killed_by(SIGKILL));
  server.wait_for("killed", "forward");
  CHECK(healthy->ask("release exchange") == "yes");
  healthy->tell("exit");
  healthy->status();
  server.wait_for("worker_ended", healthy->pid());
  const Finished suggested = run_client(temp, server, {"suggest", "--format", "json"});
  CHECK(suggested.status == exited(0));
  CHECK(contains(suggested.out, R"({"scope":"exchange","count":0,"firsts":1,)"));
  CHECK(contains(suggested.err,
                 "1 worker ended within two minutes after an expiry of the same job: the longest "
                 "scopes of these are left out\n"));
}

// Two hundred scopes of a millisecond at most have a timeout of an hour. With the file that
// `suggest` writes, a hang of the same code is killed after a second.
TEST_CASE("the file that suggest writes finds a hang before the timeout in the code would") {
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  const auto healthy = client_worker(server.dir());
  for (int i = 0; i < 200; ++i) {
    REQUIRE(healthy->ask("open step 3600000") == "yes");
    REQUIRE(healthy->ask("release step") == "yes");
  }
  const Finished suggested =
      run_client(temp, server, {"suggest", "--format", "toml", "--floor", "100ms"});
  REQUIRE(suggested.status == exited(0));
  CHECK(suggested.out.find("and the workers that were alive\n") != std::string::npos);
  const std::string path = temp.path("timeouts.toml");
  write_file(path, suggested.out);
  Worker hung("", {.environment = {{"FILETIMER_DIR", server.dir()}, {"FILETIMER_TIMEOUTS", path}},
                   .program = {client_worker_path()}});
  REQUIRE(hung.ask("connect") == "yes");
  hung.tell("open step 3600000");
  CHECK(hung.status() == killed_by(SIGKILL));
  const Record expired = server.wait_for("expired", hung.pid());
  CHECK(expired.number("timeout_s") < 60);
  CHECK(expired.number("code_timeout_s") == 3600);
}
