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

TEST_CASE("after a kill all scopes of the worker are gone") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  server.send(acquire_far(worker.pid(), "outer") + acquire_far(worker.pid(), "middle") +
              acquire(worker.pid(), "inner", 50ms));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record killed = server.wait_for([&](const Record& record) {
    return record.is("killed", worker.pid()) && record.text("scope") == "inner";
  });
  std::vector<std::string> cancelled = killed.strings("cancelled");
  std::sort(cancelled.begin(), cancelled.end());
  CHECK(cancelled == std::vector<std::string>{"middle", "outer"});
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  CHECK(left_open_at_stop(records, worker.pid()).empty());
  CHECK(count(records, "expired", worker.pid()) == 1);
  CHECK(count(records, "left_open", worker.pid()) == 0);
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
  server.send(acquire(worker.pid(), "s", 30s));
  server.barrier();
  worker.let_go();
  CHECK(worker.status() == exited(5));
  const Record record = server.wait_for("left_open", worker.pid());
  CHECK(record.text("scope") == "s");
  CHECK(record.number("elapsed_s") >= 0);
  CHECK(record.number("timeout_s") > 29);
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

TEST_CASE("a scope with signal 0 or a negative one expires, and no signal is sent") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  for (const int signal : {0, -1, -9}) {
    CAPTURE(signal);
    const std::string scope = fmt::format("signal {}", signal);
    server.send(version1(worker.pid(), scope, 1, signal));
    const Record killed =
        server.wait_for([&](const Record& record) { return record.is("killed", scope); });
    CHECK(killed.text("verdict") == "spared");
    CHECK(killed.signals().empty());
    CHECK_FALSE(killed.text("reason").empty());
  }
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

TEST_CASE("without --grace our own client has ten seconds of grace and PyTorch's client none") {
  const TempFolder temp;
  const Server server(temp);
  const Worker own("block");
  const Worker other("block");
  server.send(with_own_keys(acquire_past(own.pid(), "own", 0), R"("x_timeout_s": 0.000001)"));
  server.send(acquire_past(other.pid(), "other", 0));
  CHECK(server.wait_for("expired", own.pid()).number("grace_s") == 10);
  CHECK_FALSE(server.wait_for("expired", other.pid()).has("grace_s"));
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

TEST_CASE("in its grace period a worker opens no further scope, and its expired one is listed so") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("catch-signals");
  server.send(with_own_keys(acquire(worker.pid(), "forward", 100ms, SIGTERM),
                            R"("x_timeout_s": 0.1, "x_grace_s": 60)"));
  CHECK(worker.line() == fmt::format("signal {}", SIGTERM));
  server.barrier();
  const std::vector<std::string> list{"list", "--json"};
  CHECK(run_client(temp, server, list).out.find("\"expired\":true") != std::string::npos);
  server.send(acquire_far(worker.pid(), "late"));
  server.barrier();
  CHECK(run_client(temp, server, list).out.find("late") == std::string::npos);
  ::kill(worker.pid(), SIGKILL);
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "dead");
}

TEST_CASE("a scope name of any length and alphabet is kept apart and shown") {
  const TempFolder temp;
  Server server(temp);
  Worker worker("block");
  const std::string common(400, 'x');
  server.send(version1(worker.pid(), common + "1", 1, 0) +
              version1(worker.pid(), common + "2", 1, 0) +
              version1(worker.pid(), "\\u00e9 \\ud83d\\ude42 \\u001b[31m \\\"q\\\"", 1, 0) +
              version1(worker.pid(), "", 1, 0));
  REQUIRE(wait_until([&] { return count(server.records(), "expired", worker.pid()) == 4; }));
  const auto scopes = scopes_of(server.records(), "expired", worker.pid());
  const std::size_t cut = static_cast<std::size_t>(std::count_if(
      scopes.begin(), scopes.end(), [](const std::string& s) { return s.size() == 255; }));
  CHECK(cut == 2);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      CHECK(scopes[i] != scopes[j]);
    }
  }
  CHECK(std::count(scopes.begin(), scopes.end(), "é 🙂 \x1b[31m \"q\"") == 1);
  CHECK(std::count(scopes.begin(), scopes.end(), "") == 1);
}

TEST_CASE("the server answers and stops even if no client has opened the pipe") {
  const TempFolder temp;
  Server server(temp);
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(exists(server.fifo()));
  const Records records = server.records();
  CHECK(records.front().is("server_started"));
  CHECK(records.back().is("server_stopped"));
}
