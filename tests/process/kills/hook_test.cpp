// --on-expiry as its users have it: a shell command, a worker that is killed, a server that stops
// or is killed in between.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/utsname.h>

#include "common/sanitizers.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Writes how the expiry of a worker ended into a file of its own.
std::string write_verdict(const TempFolder& temp) {
  return fmt::format("echo $FILETIMER_VERDICT > {}/$FILETIMER_PID", temp.path());
}

std::string verdict_written(const Server& server, const TempFolder& temp, pid_t pid) {
  server.wait_for("hook", pid);
  return read_file(temp.path(std::to_string(pid)));
}

}  // namespace

TEST_CASE("a hook runs once the worker is dead and both records are in the log") {
  const TempFolder temp;
  const TempFolder memory("/dev/shm");  // a hook waits for a slow disk no longer than 250 ms
  // What it reads, what its environment is, and what it finds in the log.
  Server server(
      temp, {"--log", memory.path("log.jsonl"), "--on-expiry",
             fmt::format("cat > {0}/in; {1} show --json $FILETIMER_ID $FILETIMER_LOG > {0}/shown; "
                         "env | grep -v _SECONDS= | grep ^FILETIMER_ | sort > {0}/env; "
                         "grep State:.[^ZX] /proc/$FILETIMER_PID/status > {0}/state; "
                         "grep -c \\\"$FILETIMER_ID\\\" $FILETIMER_LOG > {0}/lines; "
                         "echo said; exit 5",
                         temp.path(), client_path())});
  const auto worker = ranked_worker(server, 3, {{"SLURM_JOB_ID", "4711"}});
  const Record killed = expire(server, *worker, "for\\\"ward");
  const Record hook = server.wait_for("hook", worker->pid());
  const Record expired = server.wait_for("expired", worker->pid());
  CHECK(read_file(temp.path("in")).empty());
  const std::string shown = read_file(temp.path("shown"));
  CHECK(shown.starts_with(expired.line() + "\n"));
  CHECK(shown.ends_with("\n" + killed.line() + "\n"));
  CHECK(read_file(temp.path("env")) ==
        fmt::format("FILETIMER_DIR={}\nFILETIMER_HOST={}\nFILETIMER_ID={}\nFILETIMER_INCIDENT={}\n"
                    "FILETIMER_JOB_ID=4711\nFILETIMER_LOG={}\nFILETIMER_PID={}\nFILETIMER_RANK=3\n"
                    "FILETIMER_SCOPE=for\"ward\nFILETIMER_VERDICT=dead\n",
                    server.dir(), killed.text("host"), killed.text("id"), killed.text("incident"),
                    server.log(), worker->pid()));
  utsname machine{};
  REQUIRE(::uname(&machine) == 0);
  CHECK(killed.text("host") == machine.nodename);
  CHECK(read_file(temp.path("state")).empty());  // no such process, or a zombie
  // `incident`, `expired`, `evidence`, `killed`
  CHECK(read_file(temp.path("lines")) == "4\n");
  CHECK(hook.text("id") == killed.text("id"));
  CHECK(hook.text("incident") == killed.text("incident"));
  CHECK(hook.text("result") == "exited");
  CHECK(hook.integer("exit_status") == 5);
  server.wait_for_message("said\n");
  CHECK(hook.integer("rank") == 3);
  server.wait_for_message("--on-expiry for " + killed.text("id") + ": exited, exit status 5");
}

TEST_CASE("a hook waits until the records of its kill are on the disk") {
  FILETIMER_SKIP_IF(filetimer::kIsSanitized,
                    "the sanitizer is in the bad disk, which no shell can load");
  // It waits 250 ms at most, so an attempt that took as long says nothing.
  for (int attempt = 0; attempt < 10; ++attempt) {
    const TempFolder temp;
    Server server(
        temp,
        on_bad_disk(temp, "BAD_DISK_HANGS",
                    {"--evidence", "none", "--on-expiry",
                     fmt::format("test ! -e {0}/fault; echo $? > {0}/was-early", temp.path())}));
    Worker worker("block");
    temp.write("fault", "");
    const filetimer::Instant begun = filetimer::Instant::now();
    server.send(acquire_past(worker.pid(), "forward"));
    CHECK(worker.status() == killed_by(SIGKILL));
    REQUIRE(run_client(server, {"ping"}).status == exited(0));
    let_pass(50ms);  // in which a hook that did not wait would look
    REQUIRE(std::filesystem::remove(temp.path("fault")));
    const bool is_valid = filetimer::Instant::now() - begun < 250ms;
    server.wait_for("hook", worker.pid());
    if (is_valid) {
      CHECK(read_file(temp.path("was-early")) == "0\n");
      return;
    }
  }
  FILETIMER_SKIP("the machine took 250 ms in each attempt");
}

TEST_CASE("a hook runs after a kill that spared the worker") {
  struct Row {
    std::vector<std::string> args;
    int signal;
  };
  for (const Row& row :
       {Row{{"--dry-run"}, SIGKILL}, Row{{}, 0}, Row{{"--kill-wait", "100ms"}, SIGTERM}}) {
    CAPTURE(row.signal);
    const TempFolder temp;
    std::vector<std::string> args = row.args;
    args.insert(args.end(), {"--on-expiry", write_verdict(temp)});
    Server server(temp, args);
    HungWorker worker(server, "s", row.signal, "ignore-term");
    CHECK(verdict_written(server, temp, worker.pid()) == "spared\n");
    CHECK(worker.is_alive());
  }
}

TEST_CASE("hooks that hang delay neither kills nor, after a second signal, the server's stop") {
  Server server({"--on-expiry", "exec sleep 1000"});
  constexpr int kMoreThanRun = 12;
  for (int i = 0; i < kMoreThanRun; ++i) {
    expire(server);
  }
  server.begin_stop();  // it waits for hooks alone
  CHECK(server.process().is_alive());
  server.stop_record();
  std::map<std::string, int> results;
  for (const Record& record : of_event(server.records(), "hook")) {
    ++results[record.text("result")];
    const bool was_started = record.text("result") == "stopped";
    CHECK(record.has("signal") == was_started);
    CHECK(record.has("hook_pid") == was_started);
  }
  CHECK(results == std::map<std::string, int>{{"stopped", 8}, {"dropped", kMoreThanRun - 8}});
}

TEST_CASE("a server that stops waits for the hooks of those it killed") {
  const TempFolder temp;
  const std::string hook = waits_for_go(temp) + "; echo > " + temp.path("done");
  Server server(temp, {"--grace", "1h", "--on-expiry", hook});
  HungWorker worker(server, "s", SIGTERM, "ignore-term");
  server.wait_for("expired", worker.pid());
  server.process().signal(SIGTERM);  // the grace is cut short: killed in the stop itself
  CHECK(worker.status() == killed_by(SIGKILL));
  REQUIRE(wait_until([&] { return exists(temp.path("begun")); }));
  CHECK(server.process().is_alive());
  temp.write("go", "");
  CHECK(server.process().status() == exited(0));
  CHECK(exists(temp.path("done")));
  CHECK_FALSE(contains(server.err(), "warning: "));  // it went well
  CHECK_FALSE(contains(server.err(), "--on-expiry"));
  const Records records = server.records();
  CHECK(count(records, "hook", worker.pid()) == 1);
  CHECK(records.back().is("server_stopped"));
}

TEST_CASE("what expires while only hooks are waited for is left to the next server") {
  until_in_time(1500ms, [](std::chrono::milliseconds timeout) {
    const TempFolder temp;
    Server server(temp, {"--on-expiry", waits_for_go(temp)});
    Worker killed("block");
    Worker late("block");
    const auto deadline = filetimer::Instant::now() + timeout;
    server.send(acquire_past(killed.pid(), "s") + acquire(late.pid(), "s", timeout));
    CHECK(killed.status() == killed_by(SIGKILL));
    REQUIRE(wait_until([&] { return exists(temp.path("begun")); }));
    server.begin_stop();
    if (filetimer::Instant::now() >= deadline) {
      temp.write("go", "");
      return false;
    }
    let_pass_until(deadline + 100ms);
    CHECK(server.process().is_alive());
    CHECK(late.is_alive());
    temp.write("go", "");
    CHECK(server.process().status() == exited(0));
    CHECK(count(server.records(), "expired", late.pid()) == 0);
    Server next(temp);
    CHECK(late.status() == killed_by(SIGKILL));
    return true;
  });
}

TEST_CASE("hooks are waited for after COMMAND's end, but not past the second SIGTERM") {
  const TempFolder temp;
  Server server(temp,
                {.args = {"--on-expiry", "echo > " + temp.path("began") + "; exec sleep 1000"},
                 .command = {worker_path(), "hang", "forward", "0.05"}});
  REQUIRE(wait_until([&] { return exists(temp.path("began")); }));
  server.begin_stop();
  CHECK(server.process().is_alive());
  CHECK(server.stop() == exited(128 + SIGKILL));
}

TEST_CASE("a hook over its time is killed with all that it has started") {
  const TempFolder temp;
  const std::string file = temp.path("child");
  const std::string hook = "trap '' TERM; sleep 1000 & echo $! > " + file + "; wait";
  Server server(temp, with_own_clocks(temp, {"--on-expiry", hook}));
  expire(server);
  const HeldPid child = pid_in(file);
  CHECK(child.is_alive());
  set_clocks(temp, server, filetimer::Instant::now() + 31s);
  CHECK(child.ends_within());
  const Record ended = server.wait_for("hook");
  CHECK(ended.text("result") == "timed_out");
  CHECK(ended.text("reason") == "it was killed after 30s");
}

TEST_CASE("a hook that has ended in time has not timed out, however late the server looks") {
  const TempFolder temp;
  const std::string file = temp.path("hook");
  Server server(temp, with_own_clocks(temp, {"--on-expiry", "echo $$ > " + file + "; sleep 1"}));
  expire(server);
  const HeldPid hook = pid_in(file);
  {
    const Stopped stopped(server);
    server.send(release(hook.pid(), "none"));  // is read before the end of the hook is noticed
    CHECK(hook.ends_within());
    set_clocks(temp, filetimer::Instant::now() + 31s);
  }
  CHECK(server.wait_for("hook").text("result") == "exited");
}

TEST_CASE("the hook of a kill that a dead server had begun is run by the next") {
  const TempFolder temp;
  Worker killed_later("ignore-term");
  Worker gone("ignore-term");
  Server server(temp, {"--grace", "1h", "--on-expiry", "echo > " + temp.path("too-early")});
  server.send(acquire_past(killed_later.pid(), "s", SIGTERM) +
              acquire_past(gone.pid(), "s", SIGTERM));
  server.wait_for("expired", killed_later.pid());
  server.wait_for("expired", gone.pid());
  server.kill();
  CHECK_FALSE(exists(temp.path("too-early")));
  gone.kill();
  Server next(temp, {"--on-expiry", write_verdict(temp)});
  next.wait_for("hook", gone.pid());
  CHECK(next.stop() == exited(0));  // which cuts the grace of the other one short
  for (const auto& [pid, verdict] :
       std::map<pid_t, std::string>{{killed_later.pid(), "dead"}, {gone.pid(), "already_gone"}}) {
    CHECK(next.wait_for("hook", pid).integer("exit_status") == 0);
    CHECK(next.wait_for("killed", pid).text("verdict") == verdict);
    CHECK(verdict_written(next, temp, pid) == verdict + "\n");
  }
}
