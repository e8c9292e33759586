// --evidence-command and drop-ins: which run, once for each incident, before the signals, and never
// for longer than they may take; and what the drop-in for flight recorders does. The ranks are
// stand-ins for PyTorch's.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <set>
#include <sstream>

#include "common/proc_files.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

Server::Setup with_command(std::string command, std::vector<std::string> more = {}) {
  std::vector<std::string> args{
      "--evidence-command", std::move(command), "--evidence", "none", "--evidence-timeout", "20s"};
  args.insert(args.end(), more.begin(), more.end());
  return {.args = std::move(args)};
}

// The folder of a server with drop-ins of its own, which the tests add first.
struct DropIns : TempFolder {
  DropIns() { REQUIRE(::mkdir(path("evidence.d").c_str(), 0755) == 0); }
  void add(const std::string& name, const std::string& script) const {
    write_program(path("evidence.d/" + name), "#!/bin/sh\n" + script + "\n");
  }
  // No process of these tests needs as long as the time limit.
  [[nodiscard]] std::vector<std::string> args(std::vector<std::string> more = {}) const {
    std::vector<std::string> args{"--evidence-dir", path("evidence.d"),   "--evidence",
                                  "proc",           "--evidence-timeout", "20s"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

// Returns the record of a drop-in about a worker.
Record wait_for_drop_in(const Server& server, std::string_view name, pid_t pid) {
  return server.wait_for([&](const Record& record) {
    return record.is("evidence_command") && record.integer("pid") == pid &&
           (record.has("drop_in") ? record.text("drop_in") : "") == name;
  });
}

std::unique_ptr<Worker> worker_of_job(const Server& server, int rank, Environment environment = {},
                                      std::vector<std::string> program = {}) {
  environment.insert({"SLURM_JOB_ID", "8812"});
  return ranked_worker(server, rank, std::move(environment), std::move(program));
}

// The drop-in for flight recorders, and the files of the ranks that it asks.
struct FlightRecorders : DropIns {
  FlightRecorders() {
    REQUIRE(::symlink((std::string(FILETIMER_DROP_INS) + "/flight-recorder").c_str(),
                      path("evidence.d/flight-recorder").c_str()) == 0);
  }
  std::unique_ptr<Worker> rank_of_job(const Server& server, int rank, const std::string& way,
                                      int size = 0) const {
    return worker_of_job(
        server, rank, environment,
        {"/usr/bin/python3", FILETIMER_FLIGHT_RECORDER, way, std::to_string(size)});
  }
  [[nodiscard]] std::string asked(int rank) const {
    return read_file(path(fmt::format("pipe_{}.asked", rank)));
  }
  const Environment environment{{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", path("pipe_")},
                                {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", path("dump_")}};
};

bool has_descendant(pid_t pid, const std::string& comm) {
  return std::ranges::any_of(filetimer::threads_of(pid), [&](pid_t tid) {
    return std::ranges::any_of(filetimer::children_of(pid, tid), [&](pid_t child) {
      return read_file(fmt::format("/proc/{}/comm", child)) == comm + "\n" ||
             has_descendant(child, comm);
    });
  });
}

}  // namespace

TEST_CASE("the output of the evidence command is recorded before the signal is sent") {
  const Server server(
      with_command("sleep 0.3; echo \"$FILETIMER_SCOPE of $FILETIMER_PID: $FILETIMER_VERDICT\"; "
                   "echo more >&2; exit 3"));
  Worker worker("block", {.environment = {{"RANK", "3"}}});
  server.send(acquire_far(worker.pid(), "load"));
  wait_for_rank(server, worker, 3);
  const Record killed = expire(server, worker, "load");
  const Record command = server.wait_for("evidence_command");
  const Record expired = server.wait_for("expired", worker.pid());
  CHECK(command.text("output") == fmt::format("load of {}: expired\nmore\n", worker.pid()));
  CHECK(command.integer("output_bytes") ==
        static_cast<std::int64_t>(command.text("output").size()));
  CHECK(command.text("result") == "exited");
  CHECK(command.integer("exit_status") == 3);
  server.wait_for_message(
      fmt::format("--evidence-command for {}: exited, exit status 3", expired.text("id")));
  CHECK(command.text("id") == expired.text("id"));
  CHECK(command.text("incident") == expired.text("incident"));
  CHECK(command.integer("rank") == 3);
  CHECK(command.integer("mono_ns") <= mono_of_signal(killed, 0));
  const Finished shown = run_client(server, {"show", expired.text("id")});
  CHECK(contains(shown.out, "Evidence command (exit status 3"));
  CHECK(contains(shown.out, fmt::format("  load of {}: expired\n  more\n", worker.pid())));
}

TEST_CASE("an evidence command that hangs is killed with all that it has started") {
  const TempFolder temp;
  const std::string pids = temp.path("pids");
  const Server server(
      temp, with_own_clocks(temp, with_command(fmt::format("sleep 1000 & echo $! $$ > {0}.new; "
                                                           "echo begun; mv {0}.new {0}; wait",
                                                           pids))
                                      .args));
  HungWorker worker(server, "load");
  REQUIRE(wait_until([&] { return exists(pids); }));
  set_clocks(temp, server, filetimer::Instant::now() + 21s);
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("result") == "timed_out");
  CHECK(command.text("reason") == "it was killed after 20s, see --evidence-timeout");
  CHECK(command.text("output") == "begun\n");
  CHECK(command.number("duration_ms") >= 20'000);
  std::istringstream words(read_file(pids));
  for (pid_t pid = 0; words >> pid;) {
    CHECK(wait_until([pid] {
      const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid));
      return !stat || stat->state == 'Z';  // not every pid 1 reaps orphans
    }));
  }
}

TEST_CASE("an evidence command that closes its outputs and hangs leaves the server asleep") {
  const TempFolder temp;
  const std::string closed = temp.path("closed");
  Server server(temp, with_command(fmt::format("exec >&- 2>&-; : > {}; sleep 1000", closed)));
  HungWorker worker(server, "load");
  REQUIRE(wait_until([&] { return exists(closed); }));
  const auto used = cpu_time_of(server.pid());
  let_pass(500ms);
  CHECK(cpu_time_of(server.pid()) - used < 150ms);
  server.stop();
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("a long output is read to its end, and its first 64 KiB are recorded") {
  const Server server(with_command("head -c 300000 /dev/zero | tr '\\0' x"));
  expire(server, "load");
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("result") == "exited");
  CHECK(command.text("output") == std::string(65536, 'x'));
  CHECK(command.integer("output_bytes") == 300000);
}

TEST_CASE("an output of any bytes is text in the record") {
  const Server server(with_command("printf 'a\\377\\033[2Jb\"'; kill $$"));
  expire(server, "load");
  const Record command = server.wait_for("evidence_command");
  CHECK(command.text("output") == "a\\xff\x1b[2Jb\"");
  CHECK(command.text("result") == "signalled");
  CHECK(command.text("name") == "SIGTERM");
  CHECK_FALSE(command.has("exit_status"));
  const Finished shown = run_client(server, {"show", "last"});
  CHECK(shown.out.find('\x1b') == std::string::npos);
}

TEST_CASE("a dry run runs the evidence command, too") {
  const Server server(with_command("echo here", {"--dry-run"}));
  HungWorker worker(server, "load");
  CHECK(server.wait_for("evidence_command").text("output") == "here\n");
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "spared");
}

TEST_CASE("a server that stops kills the worker, and kills and records its evidence command") {
  Server server(with_command("echo begun; sleep 1000", {"--evidence-timeout", "100s"}));
  HungWorker worker(server, "load");
  server.wait_for("expired", worker.pid());
  server.stop();
  CHECK(server.wait_for("evidence_command").text("result") == "stopped");
  kill_of(server, worker);
}

TEST_CASE("the drop-ins whose needs are met run before the signal, with the pids of the job") {
  const DropIns drop_ins;
  drop_ins.add("a-job",
               "echo \"$FILETIMER_PIDS; $FILETIMER_RANKS; $FILETIMER_JOB_ID; $FILETIMER_SCOPE\"");
  drop_ins.add("b-program", "# filetimer: needs no-such-program\necho no");
  drop_ins.add("c-path", "# filetimer: needs /no/such/path\necho no");
  drop_ins.add("d-variable", "# filetimer: needs env:OF_PEER\necho yes");
  drop_ins.add("e-variable", "# filetimer: needs env:OF_NONE\necho no");
  drop_ins.add("f.skipped", "echo no");
  Server server(drop_ins, drop_ins.args());
  CHECK(contains(server.wait_for("server_started").line(),
                 R"("evidence_drop_ins":["a-job","c-path","d-variable","e-variable"])"));
  const auto hung = worker_of_job(server, 3, {});
  const auto peer = worker_of_job(server, 1, {{"OF_PEER", "1"}});
  const auto loader = worker_of_job(server, 0, {});
  const auto stranger = worker_of_job(server, 2, {{"SLURM_JOB_ID", "8813"}, {"OF_NONE", "1"}});
  const Record killed = expire(server, *hung, "load");
  const Record of_job = wait_for_drop_in(server, "a-job", hung->pid());
  CHECK(of_job.text("output") ==
        fmt::format("{} {} {}; 3 0 1; 8812; load\n", hung->pid(), loader->pid(), peer->pid()));
  CHECK(of_job.integer("mono_ns") <= mono_of_signal(killed, 0));
  CHECK(wait_for_drop_in(server, "d-variable", hung->pid()).text("output") == "yes\n");
  for (const Record& record : server.records()) {
    CHECK_FALSE(contains(record.line(), R"("output":"no)"));
  }
  const Finished shown = run_client(server, {"show", killed.text("id")});
  CHECK(contains(shown.out, "Evidence command (a-job, exit status 0, duration"));
  CHECK(contains(shown.out, "Evidence command (d-variable, exit status 0, duration"));
}

TEST_CASE("drop-ins run for each job of an incident, and the command once") {
  const DropIns drop_ins;
  drop_ins.add("a", "echo $FILETIMER_JOB_ID $FILETIMER_PIDS");
  Server server(drop_ins, drop_ins.args({"--evidence-command", "true"}));
  const Worker alone("block");
  const auto one = worker_of_job(server, 0, {});
  const auto peer = worker_of_job(server, 1, {});
  const auto other = worker_of_job(server, 0, {{"SLURM_JOB_ID", "8813"}});
  // worker_of_job() has begun an incident of a worker without a job, which `alone` may join.
  std::string lines;
  for (const pid_t pid : {alone.pid(), one->pid(), peer->pid(), other->pid()}) {
    lines += acquire_past(pid, "load");
  }
  server.send(lines);
  server.wait_for("killed", one->pid());
  const Record expired = server.wait_for("killed", other->pid());
  std::multiset<std::string> outputs;
  for (const Record& record : of_event(server.records(), "evidence_command")) {
    if (record.text("incident") == expired.text("incident")) {
      outputs.insert(record.has("drop_in") ? record.text("output") : "of the command");
    }
  }
  CAPTURE(fmt::format("{}", fmt::join(outputs, ",")));
  CHECK(outputs.count("of the command") == 1);
  CHECK(outputs.count(fmt::format("8812 {} {}\n", one->pid(), peer->pid())) == 1);
  CHECK(outputs.count(fmt::format("8813 {}\n", other->pid())) == 1);
  const Finished shown = run_client(server, {"show", expired.text("id")});
  CHECK(contains(shown.out, fmt::format("8813 {}", other->pid())));
  CHECK_FALSE(contains(shown.out, fmt::format("8812 {}", one->pid())));
}

TEST_CASE("a drop-in that hangs takes no time from the others") {
  const DropIns drop_ins;
  drop_ins.add("a", "sleep 1000");
  drop_ins.add("b", "echo here $FILETIMER_RANKS; exit 3");
  const Server server(
      drop_ins, with_own_clocks(drop_ins, drop_ins.args({"--evidence-command", "echo there"})));
  HungWorker worker(server, "load");
  CHECK(wait_for_drop_in(server, "b", worker.pid()).text("output") == "here -\n");  // no rank
  CHECK(wait_for_drop_in(server, "b", worker.pid()).integer("exit_status") == 3);
  CHECK(wait_for_drop_in(server, "", worker.pid()).text("output") == "there\n");
  set_clocks(drop_ins, server, filetimer::Instant::now() + 21s);
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK(wait_for_drop_in(server, "a", worker.pid()).text("result") == "timed_out");
  server.wait_for_message("the drop-in b for ");
}

TEST_CASE("over 32 evidence commands at a time the others are not run, and recorded") {
  const DropIns drop_ins;
  for (int i = 0; i < 35; ++i) {
    drop_ins.add(fmt::format("{:02}", i), "sleep 1000");
  }
  const Server server(drop_ins, drop_ins.args({"--evidence-timeout", "300ms"}));
  const auto pid = static_cast<pid_t>(expire(server, "load").integer("pid"));
  CHECK(wait_for_drop_in(server, "31", pid).text("result") == "timed_out");
  const Record dropped = wait_for_drop_in(server, "32", pid);
  CHECK(dropped.text("result") == "dropped");
  CHECK(dropped.text("reason") == "32 evidence commands were running");
  CHECK(wait_for_drop_in(server, "34", pid).text("result") == "dropped");
}

TEST_CASE("with --evidence none no drop-in runs") {
  const DropIns drop_ins;
  drop_ins.add("a", "echo no");
  const Server server(drop_ins, drop_ins.args({"--evidence", "none"}));
  CHECK(contains(server.wait_for("server_started").line(), R"("evidence_drop_ins":[])"));
  expire(server, "load");
  CHECK(count(server.records(), "evidence_command") == 0);
}

TEST_CASE("all ranks of the job dump before the one that hangs is killed") {
  const FlightRecorders drop_ins;
  Server server(drop_ins, drop_ins.args());
  // What an earlier run left there is not taken for the dump.
  drop_ins.write("dump_0", "old");
  drop_ins.write("dump_1", "old");
  const auto hung = drop_ins.rank_of_job(server, 1, "dumps", 50'000);
  const auto waiting = drop_ins.rank_of_job(server, 0, "dumps", 7);
  // It names the FIFO of its rank, too, and is not asked.
  const auto loader = worker_of_job(server, 0, drop_ins.environment);
  const Record killed = expire(server, *hung, "load");
  const Record record = wait_for_drop_in(server, "flight-recorder", hung->pid());
  CAPTURE(record.line());
  CHECK(record.integer("mono_ns") <= mono_of_signal(killed, 0));
  CHECK(record.text("result") == "exited");
  for (const auto& [rank, pid, size] :
       {std::tuple(1, hung->pid(), 50'000), std::tuple(0, waiting->pid(), 7)}) {
    CHECK(contains(record.text("output"),
                   fmt::format("rank {}, pid {}: {}, {} bytes\n", rank, pid,
                               drop_ins.path(fmt::format("dump_{}", rank)), size)));
    CHECK(drop_ins.asked(rank) == "1\n");
  }
  CHECK_FALSE(contains(record.text("output"), std::to_string(loader->pid())));
  CHECK(waiting->is_alive());
}

TEST_CASE("a rank without a FIFO that it reads is not asked, and one that never dumps is killed") {
  const std::string no_fifo = "not asked: '{}' is not the absolute path of a FIFO of this user\n";
  struct Row {
    std::string way;
    std::string said;
    std::string result = "exited";
    std::string asked{};
  };
  for (const Row& row : {Row{"regular", no_fifo}, Row{"symlink", no_fifo},
                         Row{"unread", "not asked: No such device or address: '{}'\n"},
                         Row{"full", "not asked: Resource temporarily unavailable: '{}'\n"},
                         Row{"silent", "asked by '{}'\n", "timed_out", "1\n"}}) {
    CAPTURE(row.way);
    const FlightRecorders drop_ins;
    Server server(drop_ins, with_own_clocks(drop_ins, drop_ins.args()));
    const auto worker = drop_ins.rank_of_job(server, 0, row.way);
    server.send(acquire_past(worker->pid(), "allreduce"));
    if (row.way == "silent") {
      // The drop-in says that it has asked, and then sleeps until its time is up.
      REQUIRE(wait_until(
          [&] { return !drop_ins.asked(0).empty() && has_descendant(server.pid(), "sleep"); }));
      set_clocks(drop_ins, server, filetimer::Instant::now() + 21s);
    }
    kill_of(server, *worker);
    const Record record = wait_for_drop_in(server, "flight-recorder", worker->pid());
    CHECK(record.text("result") == row.result);
    CHECK(record.text("output") ==
          fmt::format("rank 0, pid {}: ", worker->pid()) +
              fmt::format(fmt::runtime(row.said), drop_ins.path("pipe_0.pipe")));
    CHECK(drop_ins.asked(0) == row.asked);
  }
}
