// Scopes that are paused, by a call or in a paused region. No worker is killed for one, and a
// resumed scope has exactly the time that was left.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "common/clock.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using filetimer::Instant;
using namespace std::chrono_literals;

namespace {

// Waits for the kill of the worker, and returns the record of the expired scope.
Record killed_for(const Server& server, Worker& worker) {
  CHECK(worker.status() == killed_by(SIGKILL));
  server.wait_for("killed", worker.pid());
  return server.wait_for("expired", worker.pid());
}

Instant deadline_of(const Record& record) {
  return {record.integer("deadline_mono_ns")};
}

}  // namespace

TEST_CASE("a paused scope outlives its deadline and then has the time that was left") {
  until_in_time(1000ms, [](std::chrono::milliseconds timeout) {
    const TempFolder temp;
    Server server(temp);
    const auto worker = client_worker(server.dir());
    const Instant opened = Instant::now();
    {
      const Stopped stopped(server);
      CHECK(worker->ask(fmt::format("open step {}", timeout.count())) == "yes");
      CHECK(worker->ask("pause step") == "yes");
    }
    const Instant paused = Instant::now();
    if (paused - opened > timeout / 2) {
      return false;
    }
    CHECK(worker->ask("pause step") == "yes");
    CHECK(worker->ask("left step").ends_with(" paused"));
    let_pass(timeout + 300ms);
    CHECK(expiries_of(server, *worker) == 0);
    const Instant resumed = Instant::now();
    CHECK(worker->ask("resume step") == "yes");
    const Instant goes_on = Instant::now();
    const Record expired = killed_for(server, *worker);
    CHECK(expired.text("scope") == "step");
    // The time that was left: the timeout less the time before the pause.
    CHECK(deadline_of(expired) >= resumed + (timeout - (paused - opened)));
    CHECK((deadline_of(expired) <= goes_on + timeout || count(server.records(), "deferred") > 0));
    CHECK(expired.number("timeout_s") ==
          doctest::Approx(static_cast<double>(timeout.count()) / 1000));
    return true;
  });
}

TEST_CASE("in a paused region no scope of the thread expires, and the region's name is shown") {
  const TempFolder temp;
  Server server(temp);
  const auto worker = client_worker(server.dir());
  {
    const Stopped stopped(server);
    worker->ask("open outer 1000");
    worker->ask("open held 1000");
    CHECK(worker->ask("enter checkpoint") == "yes");
  }
  CHECK(worker->ask("open inner 1000") == "yes");
  CHECK(worker->ask("enter upload") == "yes");
  CHECK(worker->ask("pause held") == "yes");
  CHECK(worker->ask("resume inner") == "yes");  // not while the region lasts
  CHECK(worker->ask("leave") == "yes");
  let_pass(1300ms);
  CHECK(expiries_of(server, *worker) == 0);
  const Finished listed = run_client(temp, {"list", "--json", "--dir", server.dir()});
  CHECK(listed.out.find("\"scope\":\"checkpoint\"") != std::string::npos);
  CHECK(listed.out.find("\"scope\":\"upload\"") == std::string::npos);
  CHECK(listed.out.find("\"paused\":true,\"left_s\":0.") != std::string::npos);
  worker->tell("leave");
  CHECK(killed_for(server, *worker).number("elapsed_s") >= 1.3);
  const auto expired = scopes_of(server.records(), "expired", worker->pid());
  CHECK(std::ranges::find(expired, "held") == expired.end());  // by its caller's word
}

TEST_CASE("a paused scope causes no warning, and one warning after the pause") {
  const TempFolder temp;
  const Server server(temp, {"--warn-at", "0.1"});
  const auto worker = client_worker(server.dir());
  const auto warnings = [&](const std::string& scope) {
    const auto scopes = scopes_of(server.records(), "warned", worker->pid());
    return std::ranges::count(scopes, scope);
  };
  worker->ask("open early 8000");
  worker->ask("pause early");
  worker->ask("open late 3500");
  server.wait_for("warned", "late");
  worker->ask("pause late");
  let_pass(500ms);
  CHECK(warnings("early") == 0);
  worker->ask("resume late");
  worker->ask("resume early");
  CHECK(worker->status() == killed_by(SIGKILL));  // for "late", which had the less time left
  server.wait_for("killed", worker->pid());
  CHECK(warnings("late") == 1);
  CHECK(server.wait_for("expired", worker->pid()).text("scope") == "late");
}

TEST_CASE("a scope keeps the time of a stop beyond a pause") {
  const TempFolder temp;
  Server server(temp);
  const auto worker = client_worker(server.dir());
  CHECK(worker->ask("open step 2000") == "yes");
  worker->signal(SIGSTOP);
  worker->wait_until_stopped();
  server.wait_for("deferred", worker->pid());
  worker->signal(SIGCONT);
  CHECK(worker->ask("pause step") == "yes");
  let_pass(2500ms);
  const Instant resumed = Instant::now();
  CHECK(worker->ask("resume step") == "yes");
  CHECK(deadline_of(killed_for(server, *worker)) >= resumed + 1s);
}
