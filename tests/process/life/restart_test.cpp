// A server is killed and another one starts. No deadline is lost, none is judged twice, and kills
// under way are finished.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "tests/process/worker.hpp"
#include "tests/support/mounts.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Returns how many kills have come to this stage, as the kill files of the server say.
std::size_t count_of_stage(const Server& server, const std::string& stage) {
  const std::string text = "\"stage\":\"" + stage + '"';
  std::size_t found = 0;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(server.dir() + "/kills", none)) {
    const std::string kill = read_file(file.path().string());
    for (std::size_t at = 0; (at = kill.find(text, at)) != kill.npos; ++at) {
      ++found;
    }
  }
  return found;
}

// Opens a scope that expires and whose first signal ends no worker, and another on the pipe, and
// kills the server in the grace period.
std::unique_ptr<Worker> signalled_by_killed_server(const TempFolder& temp,
                                                   std::chrono::milliseconds grace) {
  Server server(temp);
  auto worker = page_worker(server.dir(), "w-1");
  server.send(acquire_far(worker->pid(), "other"));
  server.barrier();
  worker->ask(fmt::format("wake 0 forward 1 {} {}", SIGCONT, grace.count()));
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  server.kill();
  return worker;
}

}  // namespace

TEST_CASE("a kill that was under way is finished under its id, and its scope is not judged again") {
  Server server;
  const auto worker = page_worker(server.dir(), "w-1");
  // SIGCONT ends no process, so the kill waits for a long grace period.
  worker->ask(fmt::format("wake 0 forward 1 {} 600000", SIGCONT));
  const std::string id = server.wait_for("expired", worker->pid()).text("id");
  CHECK(wait_until([&] { return worker->ask("word 0") == "expired"; }));
  server.kill();
  Server next(server.temp());
  next.barrier();
  next.wait_for_message(" was to be killed by a server that has ended (" + id + ")");
  CHECK(adopted_by(next) == 0);
  CHECK(worker->is_alive());
  CHECK(next.stop() == exited(0));  // a stop gives no grace period
  CHECK(std::filesystem::is_empty(next.dir() + "/kills"));
  const Record killed = kill_of(next, *worker);
  CHECK(killed.text("id") == id);
  CHECK(killed.signals() == std::vector<int>{SIGCONT, SIGKILL});  // and the first one once
  CHECK(count(next.records(), "expired", worker->pid()) == 1);
  CHECK(count(next.records(), "killed", worker->pid()) == 1);
}

TEST_CASE("a scope that was released late while no server ran is spared, and its slot is freed") {
  Server server(kNeverSignals);
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask(fmt::format("wake 0 forward 1 {} 600000", SIGCONT));
  REQUIRE(wait_until([&] { return worker->ask("word 0") == "expired"; }));
  server.wait_for("expired", worker->pid());
  server.kill();
  CHECK(worker->ask("release 0") == "late");
  worker->signal(SIGSTOP);  // as the server does before it sends the signal
  const Server next(server.temp());
  CHECK(next.wait_for("killed", worker->pid()).text("verdict") == "spared");
  CHECK(wait_until([&] { return worker->ask("word 0") == "free"; }));
  CHECK(worker->is_alive());
}

TEST_CASE("a kill without a signal that an earlier server began wakes no stopped process") {
  for (const int signal : {0, SIGKILL}) {  // with --dry-run
    CAPTURE(signal);
    const std::vector<std::string> dry_run(signal == 0 ? 0U : 1U, "--dry-run");
    std::vector<std::string> options = kNeverSignals;
    options.insert(options.end(), dry_run.begin(), dry_run.end());
    Server server(options);
    Worker worker("block");
    server.send(acquire_past(worker.pid(), "forward", signal));
    server.wait_for("expired", worker.pid());
    server.kill();
    worker.halt();
    const Server next(server.temp(), dry_run);
    CHECK(next.wait_for("killed", worker.pid()).text("verdict") == "spared");
    worker.wait_until_stopped();
  }
}

TEST_CASE("a kill that an earlier server began runs no evidence command again") {
  const TempFolder temp;
  const std::string runs = temp.path("runs");
  const auto options = [&](const char* last) {
    return std::vector<std::string>{"--evidence-command",
                                    fmt::format("echo run >> {}; {}", runs, last),
                                    "--evidence-timeout", "300"};
  };
  Server server(temp, options("sleep 300"));
  const HungWorker worker(server);
  REQUIRE(wait_until([&] { return exists(runs) && read_file(runs) == "run\n"; }));
  server.wait_for("expired", worker.pid());
  server.kill();
  const Server next(temp, options("true"));
  next.wait_for("killed", worker.pid());
  CHECK(read_file(runs) == "run\n");
}

TEST_CASE("a worker that left its scope after the signal, while no server ran, gets SIGKILL") {
  const TempFolder temp;
  const auto worker = signalled_by_killed_server(temp, 5s);
  CHECK(worker->ask("release 0") == "late");
  const Server next(temp);
  CHECK(kill_of(next, *worker).signals() == std::vector<int>{SIGCONT, SIGKILL});
}

TEST_CASE("a scope of the pipe whose worker ended while no server ran is recorded as left open") {
  Server server;
  WorkerInScope worker(server, "forward");
  HungWorker signalled(server, "before", SIGTERM, "ignore-term");
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  server.send(acquire_far(signalled.pid(), "after"));
  server.barrier();
  server.kill();
  worker.kill();
  signalled.kill();
  const Server next(server.temp());
  const Record left = next.wait_for("left_open", worker.pid());
  CHECK(left.text("scope") == "forward");
  CHECK(left.text("reason") == "the worker ended while no server was running");
  CHECK(next.wait_for("left_open", signalled.pid()).text("scope") == "after");
}

TEST_CASE("a child that survives a signal and its parent gets SIGKILL from the next server") {
  Worker worker({.program = {"/bin/sh", "-c", "sleep 100 & echo ready child=$!; wait"}});
  const HeldPid& child = worker.descendant("child");
  Server server;
  server.send(with_own_keys(acquire_past(worker.pid(), "forward", SIGCONT), R"("x_grace_s":2)"));
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  server.kill();
  worker.kill();
  CHECK(child.is_alive());
  const Server next(server.temp());
  CHECK(child.ends_within(kBound));
  const Record killed = next.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGCONT, SIGKILL});
  CHECK(killed.is_null("dead_after_ms"));  // it is not known
}

TEST_CASE("a kill whose worker died while no server ran has its rank and job, for the hook, too") {
  const TempFolder temp;
  const std::string file = temp.path("hook");
  const std::vector<std::string> hook{"--on-expiry",
                                      "echo $FILETIMER_RANK $FILETIMER_JOB_ID > " + file};
  Worker worker("ignore-term", {.environment = {{"RANK", "3"}, {"SLURM_JOB_ID", "4711"}}});
  Server server(temp, hook);
  server.send(acquire_far(worker.pid(), "outer"));
  wait_for_rank(server, worker, 3);
  server.send(with_own_keys(acquire_past(worker.pid(), "forward", SIGTERM), R"("x_grace_s":600)"));
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  const std::string comm = server.wait_for("expired", worker.pid()).text("comm");
  server.kill();
  worker.kill();
  const Server next(temp, hook);
  const Record killed = next.wait_for("killed", worker.pid());
  CHECK(killed.text("comm") == comm);
  CHECK(killed.integer("rank") == 3);
  next.wait_for("hook", worker.pid());
  CHECK(read_file(file) == "3 4711\n");
}

TEST_CASE("a scope of the pipe that was opened after a signal is watched by the next server") {
  Server server;  // --kill-wait is 30 s
  HungWorker worker(server, "before", SIGTERM, "ignore-term");
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  server.send(acquire(worker.pid(), "after", 3s));
  server.barrier();
  server.kill();
  const Server next(server.temp());
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK(next.wait_for("killed", "after").text("verdict") == "dead");
}

TEST_CASE("a scope of the pipe that a signal has cancelled stays so under the next server") {
  for (const bool lives : {true, false}) {
    CAPTURE(lives);
    const TempFolder temp;
    Server server(temp);  // --kill-wait is 30 s
    Worker worker("ignore-term");
    server.send(acquire_far(worker.pid(), "other") + acquire_past(worker.pid(), "first", SIGTERM));
    REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
    server.kill();
    if (!lives) {
      worker.kill();
    }
    set_clocks(temp, filetimer::Instant::now() + 2h);
    const Server next(temp, with_own_clocks(temp));
    const Record killed = next.wait_for("killed", "first");
    CHECK(killed.text("verdict") == (lives ? "spared" : "dead"));
    REQUIRE(killed.has("cancelled"));
    CHECK(killed.strings("cancelled") == std::vector<std::string>{"other"});
    CHECK(count(next.records(), "left_open", worker.pid()) == 0);
    CHECK(worker.is_alive() == lives);
  }
}

TEST_CASE("a signal for the worker alone has cancelled no scope of the pipe for the next server") {
  Server server;
  Worker worker("block");
  server.send(acquire_far(worker.pid(), "other") +
              with_own_keys(acquire_past(worker.pid(), "first", SIGWINCH),
                            R"("x_grace_s": Infinity, "x_signal_first": true)"));
  REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
  server.kill();
  worker.kill();
  const Server next(server.temp());
  CHECK(next.wait_for("left_open", worker.pid()).text("scope") == "other");
  CHECK_FALSE(next.wait_for("killed", "first").has("cancelled"));
}

TEST_CASE("a server with --dry-run that continues a kill sends no SIGKILL and cancels no scope") {
  const TempFolder temp;
  const auto worker = signalled_by_killed_server(temp, 1s);
  const Server next(temp, {"--dry-run"});
  const Record killed = next.wait_for("killed", worker->pid());
  CHECK(killed.text("verdict") == "spared");
  CHECK(killed.signals() == std::vector<int>{SIGCONT});
  CHECK_FALSE(killed.has("cancelled"));
  CHECK(worker->is_alive());
}

TEST_CASE("records that were not in the log when a server was killed are written by the next one") {
  const TempFolder temp;
  const std::string folder = temp.make_folder("logs");
  const std::vector<std::string> log{"--log", folder + "/log.jsonl"};
  Server server(temp, {"--dry-run", log[0], log[1]});
  CHECK(adopted_by(server) == 0);  // the log has its first record
  std::filesystem::rename(folder, temp.path("gone"));
  const WatchedWorker paged(server, true);
  const WatchedWorker piped(server, false);
  for (const WatchedWorker* each : {&paged, &piped}) {
    each->open(0, "forward", 1ms);
  }
  CHECK(wait_until([&] {
    return paged.worker->ask("word 0") == "judged" && count_of_stage(server, "ended") == 2;
  }));
  server.kill();
  temp.make_folder("logs");
  Server next(temp, log);
  for (const WatchedWorker* each : {&paged, &piped}) {
    const pid_t pid = each->worker->pid();
    CHECK(next.wait_for("killed", pid).text("verdict") == "spared");
    CHECK(count(next.records(), "expired", pid) == 1);
  }
  next.barrier();
  CHECK(paged.worker->is_alive());
  CHECK(piped.worker->is_alive());
}

TEST_CASE("a release that is written while the server stops is not lost") {
  Server server;
  WorkerInScope worker(server, "forward");
  server.barrier();
  {
    const Stopped stopped(server);
    server.process().signal(SIGTERM);
    server.send(release(worker.pid(), "forward"));
  }
  CHECK(server.process().status() == exited(0));
  set_clocks(server.temp(), filetimer::Instant::now() + 2h);
  Server next(server.temp(), with_own_clocks(server.temp()));
  next.barrier();
  CHECK(worker.is_alive());
}

TEST_CASE("the incident of a deadline that passed while no server ran has the workers' ranks") {
  const std::vector<std::string> evidence{"--evidence", "proc"};
  Server server(evidence);
  Worker worker("block", {.environment = {{"RANK", "3"}, {"SLURM_JOB_ID", "4711"}}});
  server.send(acquire_far(worker.pid(), "forward"));
  server.barrier();
  server.kill();
  CHECK(worker.is_alive());
  set_clocks(server.temp(), filetimer::Instant::now() + 2h);
  const Server next(server.temp(), with_own_clocks(server.temp(), evidence));
  const std::string id = next.wait_for("killed", worker.pid()).text("incident");
  const Record incident = next.wait_for(
      [&id](const Record& r) { return r.is("incident") && r.text("incident") == id; });
  const auto scope = incident.array("open_scopes").at(0);
  CHECK(scope["rank"].get_int64().value() == 3);
  CHECK(scope["job_id"].get_string().value() == "4711");
}

TEST_CASE("a server that cannot read the boot id, or has a foreign /proc, does not start") {
  const TempFolder temp;
  const std::vector<std::string> inside{
      "--mount", "/bin/sh", "-c",
      "mount --bind /dev/null /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\""};
  FILETIMER_SKIP_IF(!can_unshare(inside), kNoMounts);
  const std::vector<std::string> args{"--dir", temp.path("run")};
  check_failure(run_unshared(inside, server_path(), args), 1,
                "cannot read '/proc/sys/kernel/random/boot_id'");
  check_failure(run_unshared({"--pid", "--fork"}, server_path(), args), 1, "'/proc' is not that");
}

TEST_CASE("a verdict from before a reboot is none of this boot, and ends its scope in that boot") {
  for (const bool is_worker_of_this_boot : {true, false}) {
    CAPTURE(is_worker_of_this_boot);
    Server server;
    const auto worker = page_worker(server.dir(), "w-1", is_worker_of_this_boot ? "" : "boot=7");
    worker->ask(fmt::format("wake 0 forward 1 {} 600000", SIGCONT));
    const Record expired = server.wait_for("expired", worker->pid());
    REQUIRE(wait_until([&] { return count_of_stage(server, "signalled") > 0; }));
    server.kill();
    // The kill file has the boot id in the state of the kill, and in each record.
    const std::string file = server.dir() + "/kills/" + expired.text("id");
    const std::string boot_id = expired.text("boot_id");
    std::string kill = read_file(file);
    for (std::size_t at = kill.find(boot_id); at != kill.npos; at = kill.find(boot_id)) {
      kill.replace(at, boot_id.size(), "01234567-89ab-cdef-0123-456789abcdef");
    }
    write_file(file, kill);
    server.leave_log_unjudged("the test has moved its kill to another boot");
    if (!is_worker_of_this_boot) {
      worker->kill();
    }
    Server next(server.temp());
    next.leave_log_unjudged("likewise");
    if (is_worker_of_this_boot) {
      next.wait_for([&](const Record& record) {
        return record.is("expired", worker->pid()) && record.text("id") != expired.text("id");
      });
    } else {
      CHECK(next.wait_for("killed", worker->pid()).text("reason") == "the machine was restarted");
      CHECK(count(next.records(), "left_open", worker->pid()) == 0);
    }
  }
}

TEST_CASE("the state of a kill is kept until its records are on the disk, and no longer") {
  const TempFolder temp;
  const std::vector<std::string> args{"--on-expiry", "echo $FILETIMER_ID >> " + temp.path("hooks")};
  Worker worker("block");
  Server server(temp, args);
  expire(server, worker, "forward");
  server.wait_for("hook", worker.pid());
  CHECK(wait_until([&] { return std::filesystem::is_empty(server.dir() + "/kills"); }));
  server.kill();
  Server next(temp, args);
  next.barrier();
  CHECK(std::ranges::count_if(lines_of(read_file(next.log())), [](const std::string& line) {
          return contains(line, R"("event":"killed")") && contains(line, R"("scope":"forward")");
        }) == 1);  // and not once more by the next server
  CHECK(count(next.records(), "hook", worker.pid()) == 1);
}

TEST_CASE("the hook runs once for a kill whose records reach the log with the next server") {
  const TempFolder temp;
  const std::string folder = temp.make_folder("logs");
  const std::vector<std::string> args{"--log", folder + "/log.jsonl", "--on-expiry",
                                      "echo $FILETIMER_ID >> " + temp.path("hooks")};
  Worker worker("block");
  {
    Server server(temp, args);
    CHECK(adopted_by(server) == 0);
    std::filesystem::rename(folder, temp.path("gone"));
    server.send(acquire_past(worker.pid(), "forward"));
    CHECK(worker.status() == killed_by(SIGKILL));
    CHECK(wait_until([&] { return !read_file(temp.path("hooks")).empty(); }));
    server.leave_log_unjudged("it is gone");
    CHECK(server.stop() == exited(0));
  }
  temp.make_folder("logs");
  Server next(temp, args);
  const std::string id = next.wait_for("killed", worker.pid()).text("id");
  CHECK(next.stop() == exited(0));
  CHECK(read_file(temp.path("hooks")) == id + "\n");
}
