// Requests of version 1, with the semantics of PyTorch's server (docs/protocol.md).
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Returns the scopes of a worker that were still open when the server stopped.
std::vector<std::string> left_open_at_stop(const Records& records, pid_t pid) {
  std::vector<std::string> scopes;
  for (const Record& record : records) {
    if (!record.is("server_stopped")) {
      continue;
    }
    for (const auto left : record.array("left")) {
      if (left["pid"].get_int64().value() == pid) {
        scopes.emplace_back(left["scope"].get_string().value());
        const double elapsed_s = left["elapsed_s"].get_double().value();
        CHECK(elapsed_s >= 0);
        CHECK(elapsed_s <= static_cast<double>(record.integer("mono_ns")) / 1e9);
      }
    }
  }
  return scopes;
}

}  // namespace

TEST_CASE("a worker whose scope expires is killed with the requested signal and recorded") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  server.send(acquire(worker.pid(), "forward", 50ms));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record expired = server.wait_for("expired", worker.pid());
  CHECK(expired.text("scope") == "forward");
  CHECK(expired.integer("signal") == SIGKILL);
  CHECK(expired.integer("start_time") > 0);
  CHECK(expired.text("comm") == "test_worker");
  CHECK(expired.number("elapsed_s") > 0);
  CHECK(expired.number("overdue_ms") >= 0);
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.text("id") == expired.text("id"));
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
}

TEST_CASE("an acquire of an open scope replaces it") {
  const TempFolder temp;
  Server server(temp);
  Worker pushed_out("block");
  Worker pulled_in("block");
  Worker witness("block");
  server.send(acquire(pushed_out.pid(), "s", 100ms) + acquire_far(pushed_out.pid(), "s") +
              acquire(witness.pid(), "later", 400ms));
  server.send(acquire_far(pulled_in.pid(), "s") + acquire(pulled_in.pid(), "s", 100ms, SIGTERM));
  CHECK(pulled_in.status() == killed_by(SIGTERM));
  CHECK(witness.status() == killed_by(SIGKILL));
  CHECK(pushed_out.is_alive());
}

TEST_CASE("the earliest of several expired scopes with a positive signal determines the signal") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  server.send(version1(worker.pid(), "latest", 400, SIGKILL) +
              version1(worker.pid(), "second", 200, SIGUSR1) +
              version1(worker.pid(), "third", 300, SIGUSR2) +
              version1(worker.pid(), "first, and quiet", 100, 0) +
              version1(worker.pid(), "before all, and negative", 50, -3));
  CHECK(worker.status() == killed_by(SIGUSR1));
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGUSR1});
}

TEST_CASE("a signal that a worker survives ends its other scopes of the pipe") {
  const TempFolder temp;
  Server server(temp, {"--evidence", "none"});
  Worker worker("block");
  const Worker later("block");
  server.send(acquire(worker.pid(), "inner", 50ms, SIGWINCH) +
              acquire(worker.pid(), "outer", 1000ms, SIGKILL) +
              acquire(later.pid(), "later", 1200ms, 0));
  server.wait_for("killed", later.pid());
  CHECK(worker.is_alive());
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  CHECK(scopes_of(records, "expired", worker.pid()) == std::vector<std::string>{"inner"});
  CHECK(left_open_at_stop(records, worker.pid()).empty());
}

TEST_CASE("a worker that ends inside a scope by itself has left it open and is not killed") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("on-eof", {.args = {"5"}});
  server.send(acquire_far(worker.pid(), "s"));
  server.barrier();
  worker.let_go();
  CHECK(worker.status() == exited(5));
  const Record record = server.wait_for("left_open", worker.pid());
  CHECK(record.text("scope") == "s");
  CHECK(record.number("elapsed_s") >= 0);
  CHECK(record.number("timeout_s") > 1000);
  server.barrier();
  CHECK(count(server.records(), "expired", worker.pid()) == 0);
  CHECK(count(server.records(), "killed", worker.pid()) == 0);
}

TEST_CASE("a worker that renews, releases and ends at once has left nothing open") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  server.send(acquire_far(worker.pid(), "step"));
  server.barrier();
  // The server reads all requests after the worker's end.
  {
    const Stopped stopped(server);
    server.send(acquire_far(worker.pid(), "step") + acquire_far(worker.pid(), "other"));
    server.send(release(worker.pid(), "other") + release(worker.pid(), "step"));
    worker.signal(SIGTERM);
    CHECK(worker.status() == killed_by(SIGTERM));
  }
  server.barrier();
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "left_open", worker.pid()) == 0);
  CHECK(server.records().back().array("left").size() == 0);
}

TEST_CASE("a scope whose line has no timeout gets the time back in which its server was stopped") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  {
    const Stopped stopped(server);
    let_pass(1s);
    server.send(acquire(worker.pid(), "s", 1s, 0));
    let_pass(2500ms);  // the line must be seen to have waited
  }
  CHECK(server.wait_for("expired", worker.pid()).number("elapsed_s") > 1);
}

TEST_CASE("a scope with signal 0 or a negative one expires, and no signal is sent") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  for (const int signal : {0, -1, -9}) {
    CAPTURE(signal);
    const std::string scope = fmt::format("signal {}", signal);
    server.send(version1(worker.pid(), scope, 1, signal));
    const Record killed = server.wait_for("killed", scope);
    CHECK(killed.text("verdict") == "spared");
    CHECK(killed.signals().empty());
    CHECK_FALSE(killed.text("reason").empty());
  }
  // A name that does not begin the id is none.
  server.send(with_own_keys(version1(worker.pid(), "abcdef", 1, 0), R"("x_scope": "xyz")"));
  server.wait_for("expired", "abcdef");
  CHECK(worker.is_alive());
}

TEST_CASE("every signal of the kernel is sent as requested") {
  const TempFolder temp;
  Server server(temp);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXCPU, 34, 64}) {
    CAPTURE(signal);
    Worker worker("block");
    server.send(acquire_past(worker.pid(), "s", signal));
    CHECK(worker.status() == killed_by(signal));
  }
}

TEST_CASE("a scope of the pipe that is signalled first may be renewed before it expires") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("catch-signals");
  server.send(with_own_keys(acquire_past(worker.pid(), "forward", SIGTERM),
                            R"("x_timeout_s": 0.000001, "x_grace_s": 60, "x_signal_first": true)"));
  CHECK(worker.line() == fmt::format("signal {}", SIGTERM));
  CHECK(server.wait_for("warned", worker.pid()).integer("signal") == SIGTERM);
  server.send(acquire_far(worker.pid(), "forward"));
  server.barrier();
  CHECK(server.stop() == exited(0));
  CHECK(worker.is_alive());
  CHECK(count(server.records(), "expired", worker.pid()) == 0);
  CHECK(left_open_at_stop(server.records(), worker.pid()) == std::vector<std::string>{"forward"});
}
