// The kill ladder: the targets of a kill, its signals, their order, and its records.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "common/proc_files.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

constexpr const char* kOfTree[] = {"child", "group", "session", "grandchild"};

bool was_signalled(const Record& killed, pid_t pid) {
  return std::ranges::count(killed.pids_of_signal(0), pid) == 1;
}

// Returns how many processes of a group are alive and no zombies.
long living_in_group(pid_t group) {
  return std::ranges::count_if(filetimer::numbers_in("/proc"), [group](pid_t pid) {
    const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid));
    return stat && stat->pgrp == group && stat->state != 'Z' && stat->state != 'X';
  });
}

// Kills a worker in a fork storm. Returns whether every process that it started has ended. A
// process may survive only on a machine so busy that the kill had to wait for kStopLimit.
bool is_killed_whole(int signal) {
  constexpr std::int64_t kStopLimit = 30'000'000;  // of the server, in ns
  // The grace period is so long that no second signal kills what the first one missed.
  Server server({"--grace", "1m", "--evidence", "none"});
  const std::string fifo = server.temp().path("held");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const filetimer::UniqueFd held(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Worker worker("fork-storm", {.args = {fifo}});
  server.send(acquire(worker.pid(), "storm", 50ms, signal));
  const Record killed = kill_of(server, worker, signal);
  const std::int64_t verdict_at = server.wait_for("expired", worker.pid()).integer("mono_ns");
  // The group has the worker's pid, which is not reused while a process of the group lives.
  REQUIRE(wait_until([&] { return living_in_group(worker.pid()) <= 1; }));
  // The FIFO has no writer left, unless a process survived.
  constexpr int kToEndMs = 10'000;
  pollfd end{held.get(), POLLIN, 0};
  if (::poll(&end, 1, kToEndMs) == 1) {
    CHECK((end.revents & POLLHUP) != 0);
    return true;
  }
  CHECK(mono_of_signal(killed, 0) - verdict_at >= kStopLimit);
  ::kill(-worker.pid(), SIGKILL);
  CHECK(::poll(&end, 1, static_cast<int>(kBound.count())) == 1);
  return false;
}

}  // namespace

TEST_CASE("no process survives the kill of a worker that keeps starting processes") {
  for (const int signal : {SIGKILL, SIGTERM}) {
    CAPTURE(signal);
    constexpr int kTries = 5;
    int tries = 1;
    while (!is_killed_whole(signal) && tries < kTries) {
      ++tries;
    }
    CHECK(tries < kTries);
  }
}

TEST_CASE("an earlier signal that a worker survived does not delay the kill for a later scope") {
  Server server;  // --kill-wait is 30 s, longer than kBound
  HungWorker worker(server, "first", SIGTERM, "ignore-term");
  server.wait_for("evidence", worker.pid());  // the signal comes next
  server.barrier();
  CHECK(count(server.records(), "killed", worker.pid()) == 0);  // the first kill still waits
  server.send(acquire_past(worker.pid(), "second", SIGKILL));
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record first = server.wait_for("killed", "first");
  const Record second = server.wait_for("killed", "second");
  CHECK(second.text("verdict") == "dead");
  CHECK(second.signals() == std::vector<int>{SIGKILL});
  CHECK(first.text("verdict") == "spared");
  CHECK(contains(first.text("reason"), "another scope expired"));
  CHECK(first.signals() == std::vector<int>{SIGTERM});
}

TEST_CASE("a target that survives the signal of a worker without a grace period is named") {
  const Server server({"--kill-wait", "100ms"});
  Worker worker({.program = {"/bin/sh", "-c",
                             "trap '' TERM; sleep 1000 & trap - TERM; echo ready child=$!; wait"}});
  CHECK(expire(server, worker, "s", SIGTERM).text("reason") ==
        fmt::format("kill targets that are still alive: {}", worker.descendant("child").pid()));
}

TEST_CASE("a scope that is signalled first expires after its grace period, and not if it is left") {
  constexpr unsigned kSignalFirst = 64;
  Server server({"--evidence", "none"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("open 1 outer 3600000");
  worker->ask(fmt::format("wake 2 longer 1 {} 3600000 {}", SIGURG, kSignalFirst));
  CHECK(server.wait_for("warned", "longer").integer("signal") == SIGURG);
  worker->ask(fmt::format("wake 0 left 1 {} 3600000 {}", SIGURG, kSignalFirst));
  CHECK(server.wait_for("warned", "left").text("reason") == "its timeout has passed");
  CHECK(worker->ask("release 0") == "in-time");
  worker->tell(fmt::format("wake 0 kept 1 {} 100 {}", SIGURG, kSignalFirst));
  const Record killed = kill_of(server, *worker);
  CHECK(killed.text("scope") == "kept");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  CHECK(killed.strings("cancelled") == std::vector<std::string>{"outer", "longer"});
  CHECK(server.wait_for("expired", worker->pid()).number("grace_s") == 0.1);
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "warned", worker->pid()) == 3);
  CHECK(count(server.records(), "expired", worker->pid()) == 1);
}

TEST_CASE("a kill hits the whole tree, which gets SIGKILL after the grace period if it survives") {
  for (const bool ignores : {false, true}) {
    CAPTURE(ignores);
    Server server({"--grace", "200ms"});
    HungWorker worker(server, "s", SIGTERM, ignores ? "ignore-term-tree" : "tree");
    const Record killed = kill_of(server, worker, ignores ? SIGKILL : SIGTERM);
    for (const char* name : kOfTree) {
      CAPTURE(name);
      CHECK(worker.descendant(name).ends_within(kBound));
      CHECK(was_signalled(killed, worker.descendant(name).pid()));
    }
    // Children are signalled before their parents; the record has them in the opposite order.
    const auto pids = killed.pids_of_signal(0);
    CHECK(pids.front() == worker.pid());
    CHECK(std::ranges::find(pids, worker.descendant("session").pid()) <
          std::ranges::find(pids, worker.descendant("grandchild").pid()));
    CHECK(killed.array("signals").at(0)["name"].get_string().value() == "SIGTERM");
    CHECK(server.wait_for("expired", worker.pid()).number("grace_s") == 0.2);
    if (ignores) {
      REQUIRE(killed.signals() == std::vector<int>{SIGTERM, SIGKILL});
      CHECK(killed.array("signals").at(1)["name"].get_string().value() == "SIGKILL");
      CHECK(killed.number("dead_after_ms") >= 200);
    }
  }
}

TEST_CASE("a kill hits a descendant without a parent in the session that the worker leads") {
  Server server;
  Worker parent("session-leader");
  const HeldPid& worker = parent.descendant("leader");
  server.send(acquire_past(worker.pid(), "s"));
  CHECK(worker.ends_within());
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  CHECK(parent.descendant("lost").ends_within());
  CHECK(was_signalled(killed, parent.descendant("lost").pid()));
}

TEST_CASE("a descendant that the server may not signal is skipped, and the others are killed") {
  // As with a descendant that is a set-uid program, under a server that is not root's.
  const bool can_change = ::geteuid() == 0 && ::prctl(PR_CAPBSET_READ, CAP_SETPCAP) == 1 &&
                          ::prctl(PR_CAPBSET_READ, CAP_SETUID) == 1;
  FILETIMER_SKIP_IF(!can_change, "it takes root that may change users and give up capabilities");
  Server server(
      {.args = {"--kill-wait", "2s"}, .in_child = [] { ::prctl(PR_CAPBSET_DROP, CAP_KILL); }});
  Worker worker("foreign-child", {.args = {std::to_string(kSomebodyElse)}});
  const Record killed = expire(server, worker);
  CHECK(worker.descendant("own").ends_within(kBound));
  CHECK_FALSE(killed.has("reason"));
  CHECK(was_signalled(killed, worker.descendant("own").pid()));
  CHECK_FALSE(was_signalled(killed, worker.descendant("foreign").pid()));
  CHECK(worker.descendant("foreign").is_alive());
}

TEST_CASE("--kill process hits the worker alone") {
  Server server({"--kill", "process"});
  Worker worker("tree");
  const Record killed = expire(server, worker);
  CHECK(killed.pids_of_signal(0) == std::vector<pid_t>{worker.pid()});
  for (const char* name : kOfTree) {
    CAPTURE(name);
    CHECK(worker.descendant(name).is_alive());
  }
}

TEST_CASE("a scope that is signalled first and never gets SIGKILL expires for the worker alone") {
  for (const bool by_next_server : {false, true}) {
    CAPTURE(by_next_server);
    const TempFolder temp;
    Worker worker("tree");
    std::optional<Server> server;
    const std::vector<std::string> no_evidence{"--evidence", "none"};
    server.emplace(temp, by_next_server ? kNeverSignals : no_evidence);
    server->send(with_own_keys(acquire_past(worker.pid(), "s", SIGUSR1),
                               R"("x_grace_s": Infinity, "x_signal_first": true)"));
    if (by_next_server) {
      server->wait_for("expired", worker.pid());
      server->kill();
      server.emplace(temp);
    }
    CHECK(kill_of(*server, worker, SIGUSR1).pids_of_signal(0) == std::vector<pid_t>{worker.pid()});
    CHECK(worker.descendant("child").is_alive());
  }
}

TEST_CASE("a scope that is signalled first and never gets SIGKILL cancels no other of the pipe") {
  Server server({"--evidence", "none"});
  Worker worker("block");
  server.send(with_own_keys(acquire_past(worker.pid(), "first", SIGWINCH),
                            R"("x_grace_s": Infinity, "x_signal_first": true)") +
              acquire(worker.pid(), "outer", 300ms));
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK(server.wait_for("killed", "outer").text("verdict") == "dead");
  CHECK_FALSE(server.wait_for("killed", "first").has("cancelled"));
}

TEST_CASE("a scope that is signalled first does not take the signal of one that expires with it") {
  Server server({"--evidence", "none"});
  Worker worker("tree");
  server.send(with_own_keys(version1(worker.pid(), "first", 100, SIGUSR1),
                            R"("x_grace_s": Infinity, "x_signal_first": true)") +
              version1(worker.pid(), "second", 200) + acquire_far(worker.pid(), "open"));
  CHECK(kill_of(server, worker).signals() == std::vector<int>{SIGKILL});
  // The first record of a kill alone lists the scopes that it cancels.
  CHECK(server.wait_for("killed", "first").has("cancelled") !=
        server.wait_for("killed", "second").has("cancelled"));
}

TEST_CASE("a stopped worker gets SIGCONT after the signal, so that the signal reaches it") {
  Server server({"--stopped", "kill"});
  Worker worker("block");
  worker.halt();
  expire(server, worker, "s", SIGTERM);
}

TEST_CASE("--dry-run sends no signal, records what it would do, and other scopes stay open") {
  Server server({"--dry-run", "--grace", "10ms"});
  Worker worker("block");
  server.send(acquire(worker.pid(), "later", 200ms) + acquire_past(worker.pid(), "now"));
  const Record killed = server.wait_for("killed", "now");
  CHECK(killed.text("verdict") == "spared");
  CHECK(contains(killed.text("reason"), "dry"));
  server.wait_for_message(": spared, dry run (" + killed.text("id") + ")\n");
  CHECK(killed.signals().empty());
  server.wait_for("killed", "later");
  CHECK(worker.is_alive());
  CHECK(server.stop() == exited(0));
  CHECK(scopes_of(server.records(), "expired", worker.pid()) ==
        std::vector<std::string>{"now", "later"});
}

TEST_CASE("verdict, evidence, signal and end follow one another, in the log and in time") {
  Server server({"--evidence", "proc"});
  Worker worker("block", {.environment = {{"RANK", "3"}, {"LOCAL_RANK", "1"}}});
  Worker other("block", {.environment = {{"RANK", "4"}, {"TORCHELASTIC_RUN_ID", "8812"}}});
  server.send(acquire_far(other.pid(), "waits for rank 3") + acquire_far(worker.pid(), "outer") +
              acquire_far(worker.pid(), "inner"));
  wait_for_rank(server, worker, 3);
  const Record killed = expire(server, worker, "inner");
  const Record expired = server.wait_for("expired");
  CHECK(expired.integer("rank") == 3);
  CHECK(expired.integer("local_rank") == 1);
  CHECK(expired.array("open_scopes").size() == 2);
  const Record incident = server.wait_for("incident");
  CHECK(incident.text("incident") == expired.text("incident"));
  CHECK(incident.integer("workers") == 2);
  CHECK(contains(incident.line(), R"("scope":"waits for rank 3")"));
  const Record evidence = server.wait_for("evidence");
  CHECK(evidence.text("id") == expired.text("id"));
  CHECK(evidence.text("state") == "S");
  CHECK(evidence.array("threads").size() == 1);
  CHECK(killed.text("id") == expired.text("id"));
  std::vector<std::string> order;
  for (const Record& record : server.records()) {
    if (!record.is("server_started") && !record.is("deferred")) {
      order.push_back(record.text("event"));
    }
  }
  CHECK(order == std::vector<std::string>{"expired", "incident", "evidence", "killed"});
  const std::string whom = fmt::format("pid {} ({}, rank 3) ", worker.pid(), killed.text("comm"));
  const std::string id = fmt::format("({})\n", killed.text("id"));
  server.wait_for_message(whom + "expired in 'inner' after ");
  server.wait_for_message(": to be sent SIGKILL " + id);
  server.wait_for_message(whom + "is dead " + id);
}

TEST_CASE("a scope opened within the grace period is not judged, warned about or left open") {
  for (const bool with_page : {false, true}) {
    CAPTURE(with_page);
    Server server({"--evidence", "none", "--warn-at", "0.5", "--grace", "1h"});
    const WatchedWorker watched(server, with_page);
    const auto& worker = watched.worker;
    watched.open(0, "s", 1ms, SIGURG);  // which does not end a process
    server.wait_for("expired", worker->pid());
    server.barrier();  // the signal was sent
    watched.open(1, "late", 50ms);
    let_pass(60ms);
    server.barrier();
    CHECK(worker->is_alive());
    worker->signal(SIGKILL);
    CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "dead");
    CHECK(server.stop() == exited(0));
    const Records records = server.records();
    CHECK(scopes_of(records, "expired", worker->pid()) == std::vector<std::string>{"s"});
    CHECK(count(records, "warned", "late") == 0);
    CHECK(count(records, "left_open", "late") == 0);
  }
}

TEST_CASE("a soft deadline that is read together with the end of its worker causes no warning") {
  Server server({"--evidence", "none"});
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask(fmt::format("wake 0 s 1 {} 3600000", SIGURG));
  REQUIRE(wait_until([&] { return worker->ask("word 0") == "expired"; }));
  // The kill has begun when a later control request is answered.
  REQUIRE(run_client(server, {"ping"}).status == exited(0));
  {
    const Stopped stopped(server);
    worker->ask("wake 1 soft 0 9 4294967295 0 1");
    let_pass(10ms);
    worker->kill();
  }
  CHECK(server.wait_for("killed", worker->pid()).signals() == std::vector<int>{SIGURG});
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "warned") == 0);
}
