// Requests of version 1, with the semantics of PyTorch's server (docs/protocol.md), and those that
// must not harm a server: broken and hostile lines, writers that hold the pipe open, and pids that
// must not be killed.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <filesystem>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Returns the scopes of a worker that were still open when the server stopped.
std::vector<std::string> left_open_at_stop(const Records& records, pid_t pid) {
  std::vector<std::string> scopes;
  const Record stopped = of_event(records, "server_stopped").at(0);
  for (const auto left : stopped.array("left")) {
    if (left["pid"].get_int64().value() == pid) {
      scopes.emplace_back(left["scope"].get_string().value());
      const double elapsed_s = left["elapsed_s"].get_double().value();
      CHECK(elapsed_s >= 0);
      CHECK(elapsed_s <= static_cast<double>(stopped.integer("mono_ns")) / 1e9);
    }
  }
  return scopes;
}

constexpr const char* kCannotTrace = "no process can be traced here";

// Stops a server for its tracer, which this test becomes. Returns false if it cannot.
bool seize(pid_t server) {
  int status = 0;
  return ::ptrace(PTRACE_SEIZE, server, nullptr, PTRACE_O_TRACESYSGOOD) == 0 &&
         ::ptrace(PTRACE_INTERRUPT, server, nullptr, nullptr) == 0 &&
         ::waitpid(server, &status, __WALL) == server;
}

// Lets a traced server run until it begins to read the pipe, or has read it.
void run_until_reading(pid_t server, bool has_read) {
  __ptrace_syscall_info info{};
  for (bool is_reading = false; !is_reading || info.op != PTRACE_SYSCALL_INFO_EXIT;) {
    int status = 0;
    REQUIRE(::ptrace(PTRACE_SYSCALL, server, nullptr, nullptr) == 0);
    REQUIRE(::waitpid(server, &status, __WALL) == server);
    REQUIRE(WIFSTOPPED(status));
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, server, sizeof info, &info) > 0);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      std::error_code ignored;
      is_reading = info.entry.nr == SYS_read &&
                   std::filesystem::read_symlink(
                       fmt::format("/proc/{}/fd/{}", server, info.entry.args[0]), ignored)
                           .filename() == "requests";
    }
    if (is_reading && !has_read) {
      return;
    }
  }
}

}  // namespace

TEST_CASE("the earliest of several expired scopes with a positive signal determines the signal") {
  Server server;
  Worker worker("block");
  server.send(version1(worker.pid(), "latest", 400, SIGKILL) +
              version1(worker.pid(), "second", 200, SIGUSR1) +
              version1(worker.pid(), "third", 300, SIGUSR2) +
              version1(worker.pid(), "first, and quiet", 100, 0) +
              version1(worker.pid(), "before all, and negative", 50, -3));
  CHECK(kill_of(server, worker, SIGUSR1).signals() == std::vector<int>{SIGUSR1});
}

TEST_CASE("a signal that a worker survives ends its other scopes of the pipe") {
  Server server({"--evidence", "none"});
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

TEST_CASE("a worker that renews, releases and ends at once has left nothing open") {
  Server server;
  WorkerInScope worker(server, "step");
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
  CHECK(server.stop_record().array("left").size() == 0);
  CHECK(count(server.records(), "left_open", worker.pid()) == 0);
}

TEST_CASE("a scope whose line has no timeout gets the time back in which its server was stopped") {
  Server server;
  Worker worker("block");
  server.barrier();
  {
    const Stopped stopped(server);
    let_pass(1s);
    server.send(acquire(worker.pid(), "s", 1s, 0));
    let_pass(2500ms);  // the line must be seen to have waited
  }
  CHECK(server.wait_for("expired", worker.pid()).number("elapsed_s") > 1);
  CHECK(server.wait_for("deferred").text("reason").starts_with("the server could not run for "));
}

TEST_CASE("a scope whose line has no timeout gets the time back wherever its server was stopped") {
  enum class Line { kLater, kBehind, kRead };
  for (const Line line : {Line::kLater, Line::kBehind, Line::kRead}) {
    CAPTURE(line);
    Server server;
    Worker worker("block");
    server.barrier();
    FILETIMER_SKIP_IF(!seize(server.pid()), kCannotTrace);
    server.send(line == Line::kRead ? acquire(worker.pid(), "s", 1200ms, 0)
                                    : acquire_far(worker.pid(), "other"));
    run_until_reading(server.pid(), line != Line::kLater);
    if (line != Line::kRead) {
      server.send(acquire(worker.pid(), "s", 200ms, 0));
    }
    let_pass(1500ms);
    REQUIRE(::ptrace(PTRACE_DETACH, server.pid(), nullptr, nullptr) == 0);
    CHECK(server.wait_for("expired", worker.pid()).number("elapsed_s") > 0.2);
  }
}

TEST_CASE("two stops of the server, one right after the other, are both given back") {
  Server server;
  Worker worker("block");
  server.send(acquire(worker.pid(), "s", 2s, 0));
  server.barrier();
  FILETIMER_SKIP_IF(!seize(server.pid()), kCannotTrace);
  let_pass(1s);
  run_until_reading(server.pid(), false);
  let_pass(1s);
  REQUIRE(::ptrace(PTRACE_DETACH, server.pid(), nullptr, nullptr) == 0);
  // The first was noticed from a planned look on, which comes every 250 ms.
  CHECK(server.wait_for("expired", worker.pid()).number("elapsed_s") > 3.4);
}

TEST_CASE("a grace period is longer by a stop of the server behind its wake-up, too") {
  Server server({"--grace", "2s", "--evidence", "none"});
  HungWorker worker(server, "step", SIGTERM, "ignore-term");
  server.wait_for("expired", worker.pid());
  server.barrier();  // and its signal was sent
  FILETIMER_SKIP_IF(!seize(server.pid()), kCannotTrace);
  run_until_reading(server.pid(), true);
  let_pass(4s);
  const std::int64_t resumed = filetimer::Instant::now().ns;
  REQUIRE(::ptrace(PTRACE_DETACH, server.pid(), nullptr, nullptr) == 0);
  CHECK(mono_of_signal(kill_of(server, worker), 1) - resumed > 1'000'000'000);
}

TEST_CASE("a scope with signal 0 or a negative one expires, and no signal is sent") {
  Server server;
  Worker worker("block");
  for (const int signal : {0, -1, -9}) {
    CAPTURE(signal);
    const std::string scope = fmt::format("signal {}", signal);
    server.send(version1(worker.pid(), scope, 1, signal));
    const Record killed = server.wait_for("killed", scope);
    CHECK(killed.text("verdict") == "spared");
    CHECK(killed.signals().empty());
    CHECK(killed.text("reason") == "signal 0");
  }
  // A name that does not begin the id is none.
  server.send(with_own_keys(version1(worker.pid(), R"(abc\ndef)", 1, 0), R"("x_scope": "xyz")"));
  server.wait_for("expired", "abc\ndef");
  server.wait_for_message(R"(expired in 'abc\ndef' after )");  // on one line
  CHECK(worker.is_alive());
}

TEST_CASE("every signal of the kernel is sent as requested") {
  Server server;
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXCPU, 34, 64}) {
    CAPTURE(signal);
    Worker worker("block");
    expire(server, worker, "s", signal);
  }
  const HungWorker refused(server, "s", 65);
  CHECK(server.wait_for("rejected", refused.pid()).text("reason") ==
        "signal is 65: expected at most 64");
}

TEST_CASE("a scope of the pipe that is signalled first may be renewed before it expires") {
  Server server;
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

TEST_CASE("a bad line right after another is recorded without a further event") {
  Server server({"--max-interval", "1h"});
  for (const char* const line : {"first", "second"}) {
    server.send(std::string(line) + "\n");
    const Record rejected = server.wait_for(
        [&](const Record& r) { return r.is("rejected") && r.text("line") == line; });
    CHECK(rejected.integer("count") == 1);
    CHECK_FALSE(rejected.text("reason").empty());
  }
}

TEST_CASE("a writer that holds the pipe open after half a line delays no deadline") {
  Server server({"--max-interval", "1h"});
  Worker slow("block");
  Worker early("block");
  Worker late("block");
  const std::string line = acquire_past(slow.pid(), "s");
  server.send(acquire(early.pid(), "sent before the half line", 200ms));
  const filetimer::UniqueFd holder = open_pipe(server.fifo());
  write_all(holder.get(), line.substr(0, 40));
  CHECK(early.status() == killed_by(SIGKILL));
  server.send(acquire(late.pid(), "sent behind the half line", 50ms));
  CHECK(late.status() == killed_by(SIGKILL));
  check_prompt(server, early.pid());
  check_prompt(server, late.pid());
  // The rest of the half line is not a request, and the next whole line is one.
  write_all(holder.get(), line.substr(40));
  server.barrier();
  CHECK(slow.is_alive());
  write_all(holder.get(), line);
  CHECK(slow.status() == killed_by(SIGKILL));
}

TEST_CASE("a line whose pid is not a worker's is rejected with the reason") {
  Worker group("block");                // leads a process group of its own
  constexpr pid_t kUnused = 4'194'305;  // the largest pid of the kernel is 4,194,304
  const std::string no_worker = "expected a worker's";
  struct Refused {
    std::optional<pid_t> pid;  // none: that of the server
    int signal;                // harmless where a wrong server might send it to other processes
    std::string reason;
  };
  const std::vector<Refused> all_refused = {
      {0, SIGKILL, no_worker},
      {-1, SIGCONT, no_worker},
      {-group.pid(), SIGKILL, no_worker},
      {1, SIGCONT, no_worker},
      {std::nullopt, SIGKILL, "is this server"},
      {::getpid(), SIGCONT, "has started this server"},
      {::getppid(), SIGCONT, ::getppid() > 1 ? "has started this server" : no_worker},
      {kUnused, SIGKILL, "there is no process with pid 4194305"}};
  for (const Refused& refused : all_refused) {
    CAPTURE(refused.reason);
    Server server;
    server.send(version1(refused.pid.value_or(server.pid()), "s", 1, refused.signal));
    server.barrier();
    CHECK(server.stop_record().integer("rejected") == 1);
    CHECK(count(server.records(), "expired") == 1);  // the barrier's
    const Record record = server.wait_for("rejected");
    CHECK(contains(record.text("reason"), refused.reason));
    CHECK(group.is_alive());
  }
}

TEST_CASE("root's server does not kill another user's process") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  Server server;
  Worker worker("block", {.user = kSomebodyElse});
  server.send(acquire_past(worker.pid(), "s"));
  server.barrier();
  CHECK(worker.is_alive());
  const Record rejected = server.wait_for("rejected", worker.pid());
  CHECK(contains(rejected.text("reason"), "user"));
}

TEST_CASE("a second server in the directory, or with its pipe, exits 3 and disturbs nothing") {
  Server server;
  WorkerInScope worker(server, "s", 500ms);
  const auto pipe = filetimer::identity_of(server.fifo());
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--dir", server.dir()},
           {"--dir", server.temp().path("other"), "--fifo", server.fifo()}}) {
    const Finished second = run_server(args);
    check_failure(second, 3, std::to_string(server.pid()));
    CHECK(second.out.empty());
    CHECK(std::ranges::count(second.err, '\n') == 1);
  }
  CHECK(filetimer::identity_of(server.fifo()) == pipe);
  CHECK(worker.status() == killed_by(SIGKILL));
  server.barrier();
  CHECK(count(server.records(), "server_started") == 1);
}
