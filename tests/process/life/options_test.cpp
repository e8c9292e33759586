// The command line and the config file, by a table of arguments, exit status and text; the detached
// server; and what a server records about itself, with exactly the fields of docs/records.md.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "tests/process/worker.hpp"
#include "tests/support/records_doc.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

struct BadUsage {
  std::vector<std::string> args;
  std::string says;  // part of the line on standard error
  int status = 2;
};

std::string settings_of(const Server& server) {
  return simdjson::minify(server.records().front().at("settings"));
}

}  // namespace

TEST_CASE("an unknown option or a bad value is bad usage, quoted on one line, also with COMMAND") {
  const TempFolder temp;
  for (const BadUsage& bad : std::vector<BadUsage>{
           {{"--nonsense", "x"}, "unknown option '--nonsense' (see"},
           {{"train.py", "--lr"}, "unexpected 'train.py': expected an option, or '--"},
           {{"--dry-run", ""}, "unexpected '': expected an option, or"},
           {{"-x"}, "-x"},
           {{"--grace"}, "--grace"},
           {{"--grace", "soon"}, "'soon'"},
           {{"--grace", "0"}, "'0'"},
           {{"--max-interval", "inf"}, "'inf'"},
           {{"--max-interval", "100us"}, "'100us' is too short: expected at least 1ms"},
           {{"--max-timeout", "NaN"}, "'NaN'"},
           {{"--default-timeout", "soon"}, "500ms, or inf"},
           {{"--evidence-timeout", "2x"}, "'2x'"},
           {{"--kill-wait", "99999999999"}, "'99999999999' is too long"},
           {{"--kill", "everyone"}, "'everyone'"},
           {{"--kill", "a\nb"}, R"('a\nb': expected one of)"},
           {{"--fifo", temp.path("a\nb"), "--log", temp.path("a\nb")}, R"(/a\nb' is the log)"},
           {{"--evidence", "photos"}, "'photos': expected one of none, proc, stacks"},
           {{"--log-max", "4095"}, "'4095': expected a size of at least 4K"},
           {{"--log-max", "99999999999999999999"}, "'99999999999999999999'"},
           {{"--warn-at", "1"}, "'1'"},
           {{"--warn-at", "0"}, "'0'"},
           {{"--warn-at", "nan"}, "'nan'"},
           {{"--warn-at", "50%"}, "'50%'"},
           {{"--max-wait", "0"}, "'0'"},
           {{"--log-level", "loud"}, "'loud'"},
           {{"--on-expiry"}, "--on-expiry"},
           {{"--on-expiry", ""}, "''"},
           {{"--metrics"}, "--metrics"},
           {{"--metrics", ""}, "''"},
           {{"--log=", "--dry-run"}, "--log: '': expected a value"},
           {{"--dry-run=maybe"}, "--dry-run: 'maybe': expected no value"},
           {{"--evidence-dir", temp.path("missing")}, "missing': expected a directory, or none"},
           {{"--config", temp.path()}, temp.path()},
           {{"--config", temp.path("missing.toml")}, temp.path("missing.toml")},
           {{"--metrics", temp.path("run/expired.jsonl")}, "run/expired.jsonl' is the log"},
           {{"--fifo", temp.path("x"), "--log", temp.path("x")}, "x' is the log"},
           {{"--log", temp.path("run/requests")}, "run/requests' is the server's own"},
           {{"--metrics", temp.path("run/control")}, "run/control' is the server's own"},
           {{"--detach", "--log", "/dev/stderr"}, "another --log with it than '/dev/stderr'"},
           {{"--detach", "--log", "/dev/fd/3"}, "another --log with it than '/dev/fd/3'"},
           {{"--nonsense", "--", "/bin/true"}, "--nonsense", 125},
           {{"--grace", "soon", "--", "/bin/true"}, "'soon'", 125},
           {{"--detach", "--", "/bin/true"}, "--detach: expected no COMMAND with it", 125},
           {{"--"}, "'--' ends the line: expected a COMMAND after it", 125}}) {
    CAPTURE(fmt::format("{}", fmt::join(bad.args, " ")));
    std::vector<std::string> args{"--dir", temp.path("run")};
    args.insert(args.end(), bad.args.begin(), bad.args.end());
    const Finished finished = run_server(args);
    CAPTURE(finished.err);
    check_failure(finished, bad.status, bad.says);
    CHECK(finished.out.empty());
    CHECK(std::ranges::count(finished.err, '\n') == 1);
    CHECK_FALSE(exists(temp.path("run")));  // refused before anything was made
  }
}

TEST_CASE("the variable of --log-level counts if the option is not given") {
  const TempFolder temp;
  const Environment loud{{"FILETIMER_LOG_LEVEL", "loud"}};
  check_failure(run_server({"--dir", temp.path("run")}, loud), 2,
                "$FILETIMER_LOG_LEVEL: --log-level: 'loud': expected one of error, warning");
  std::vector<std::string> args{"--dir", temp.path("run"), "--log-max", "4K", "--", "/bin/true"};
  CHECK(run_server(args, {{"FILETIMER_LOG_LEVEL", ""}}).status == exited(0));
  CHECK(contains(read_file(temp.path("run/expired.jsonl")), R"("max_interval_s":10,)"));
  args.insert(args.begin(), {"--log-level", "info"});
  CHECK(run_server(args, loud).status == exited(0));
}

TEST_CASE("values of the config file are used") {
  const TempFolder temp;
  write_file(temp.path("c.toml"),
             fmt::format("dir = \"{0}/from-file\"\nfifo = \"{0}/pipe\"\nlog = \"{0}/log.jsonl\"\n",
                         temp.path()) +
                 "# a comment\n"
                 "grace = \"100ms\"\n"
                 "kill = \"process\"\n"
                 "dry-run = false\n"
                 "evidence = \"none\"\n"
                 "max-interval = 5\n"
                 "kill-wait = 2.5\n"
                 "warn-at = 0.75\n"
                 "log-max = 1152921504606846976\n"
                 "on-expiry = 'echo \"from the file\"'\n");
  Server server(temp, {.args = {"--config", temp.path("c.toml")}, .with_dir = false});
  CHECK(server.dir() == temp.path("from-file"));
  CHECK(server.fifo() == temp.path("pipe"));
  CHECK(server.log() == temp.path("log.jsonl"));
  Worker worker("ignore-term");
  // A client that knows only the directory finds the pipe through its link.
  send_raw(temp.path("from-file/requests"), acquire_past(worker.pid(), "s", SIGTERM));
  CHECK(kill_of(server, worker).signals() == std::vector<int>{SIGTERM, SIGKILL});
  CHECK(count(server.records(), "evidence") == 0);
  server.wait_for("hook", worker.pid());
  CHECK(contains(server.err(), "from the file\n"));
  CHECK(contains(settings_of(server), "\"warn_at\":0.75"));
  CHECK(contains(settings_of(server), "\"log_max_bytes\":1152921504606846976"));
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(exists(temp.path("from-file/requests")));
  CHECK_FALSE(exists(temp.path("pipe")));
}

TEST_CASE("the command line wins over the config file, wherever it stands") {
  const TempFolder temp;
  write_file(temp.path("c.toml"), "dry-run = true\nevidence = \"proc\"\nkill = \"process\"\n");
  for (const bool config_first : {true, false}) {
    std::vector<std::string> args{"--evidence", "none"};
    args.insert(config_first ? args.begin() : args.end(), {"--config", temp.path("c.toml")});
    Server server(temp, args);
    const HungWorker worker(server);
    const Record killed = server.wait_for("killed", worker.pid());
    CHECK(killed.text("verdict") == "spared");  // from the file
    CHECK(count(server.records(), "evidence", worker.pid()) == 0);
    CHECK(server.stop() == exited(0));
    REQUIRE(::unlink(server.log().c_str()) == 0);
  }
}

TEST_CASE("a bad config file is bad usage with the place of the error") {
  const TempFolder temp;
  struct Row {
    const char* text;
    const char* says;
  };
  for (const Row& row : std::vector<Row>{{"grace = \n", "line 1"},
                                         {"\n\nnot toml at all\n", "line 3"},
                                         {"kill-wait = 'late'\n", "'late'"},
                                         {"nonsense = 1\n", "nonsense"},
                                         {"grace = \"soon\"\n", "'soon'"},
                                         {"grace = 0\n", "'0'"},
                                         {"grace = [1]\n", "expected a number or a string"},
                                         {"dry-run = 'yes'\n", "expected true or false"},
                                         {"config = 'c.toml'\n", "'config' is not a setting"},
                                         {"[section]\ngrace = 1\n", "section"},
                                         {"kill = \"all\"\n", "'all'"},
                                         {"kill = true\n", "kill"},
                                         {"on-expiry = true\n", "on-expiry"},
                                         {"grace = 1\ngrace = 2\n", "grace"},
                                         {"max-interval = \"inf\"\n", "'inf'"},
                                         {"warn-at = 2\n", "'2'"}}) {
    CAPTURE(row.text);
    write_file(temp.path("c.toml"), row.text);
    const Finished finished =
        run_server({"--dir", temp.path("run"), "--config", temp.path("c.toml"), "--kill-wait",
                    "1s"});  // replaces a value, and excuses no bad one
    CAPTURE(finished.err);
    check_failure(finished, 2, temp.path("c.toml"));
    CHECK(contains(finished.err, row.says));
    CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
  }
}

TEST_CASE("a config file over the limit is bad usage, and not cut") {
  const TempFolder temp;
  write_file(temp.path("c.toml"), std::string(std::size_t{1} << 20, '#') + "\ndry-run = true\n");
  check_failure(
      run_server({"--dir", temp.path("run"), "--config", temp.path("c.toml"), "--", "/bin/true"}),
      125, "expected at most 1048576 bytes");
}

TEST_CASE("--detach returns when its server is ready, in a session and with files of its own") {
  const TempFolder temp;
  // The caller has a file open.
  const Finished starter = run("/bin/sh", {"-c", "exec 9>\"$0\"; exec \"$@\"", temp.path("lock"),
                                           server_path(), "--dir", temp.path("run"), "--detach"});
  CAPTURE(starter.err);
  REQUIRE(starter.status == exited(0));
  REQUIRE(starter.out.starts_with("ready dir="));
  const pid_t pid = std::stoi(starter.out.substr(starter.out.rfind("pid=") + 4));
  const HeldPid server(pid);
  CHECK(::getsid(pid) == pid);
  CHECK(::getsid(pid) != ::getsid(0));
  // No wait, because the server was ready when the starter returned.
  Worker worker("block");
  send_raw(temp.path("run/requests"), acquire_past(worker.pid(), "s"));
  CHECK(worker.status() == killed_by(SIGKILL));
  CHECK_FALSE(
      contains(run("/bin/ls", {"-l", fmt::format("/proc/{}/fd", pid)}).out, temp.path("lock")));
  server.signal(SIGTERM);
  CHECK(server.ends_within(kBound));
  CHECK_FALSE(exists(temp.path("run/requests")));
}

TEST_CASE("--detach prints the error and returns the status of a server that cannot start") {
  const TempFolder temp;
  Server first(temp);
  check_failure(run_server({"--dir", first.dir(), "--detach"}), 3, std::to_string(first.pid()));
  write_file(temp.path("file"), "");
  check_failure(run_server({"--dir", temp.path("file"), "--detach"}), 1, temp.path("file"));
}

TEST_CASE("SIGTERM and SIGINT stop a server, SIGHUP, SIGUSR1 and SIGPIPE do not") {
  for (const int signal : {SIGTERM, SIGINT}) {
    CAPTURE(signal);
    Server server;
    for (const int harmless : {SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGCONT}) {
      server.process().signal(harmless);
    }
    server.barrier();
    server.process().signal(signal);
    CHECK(server.process().status() == exited(0));
    CHECK(server.records().back().is("server_stopped"));
  }
}

TEST_CASE("a server writes about itself exactly the fields that docs/records.md names") {
  const TempFolder temp;
  Server server(temp, {"--max-timeout", "1h", "--default-timeout", "30s", "--grace", "off",
                       "--warn-at", "0.5", "--metrics", temp.path("filetimer.prom")});
  Worker hung("block", {.environment = {{"RANK", "2"}}});
  Worker other("block", {.environment = {{"RANK", "0"}}});
  Worker ends({.program = {"/bin/sh", "-c", "echo ready; read end; exit 0"}});
  server.send("no request\n" + acquire(other.pid(), "exchange", std::chrono::hours(2)) +
              acquire_far(ends.pid(), "step") + acquire(hung.pid(), "load", 200ms));
  server.wait_for("killed", hung.pid());
  ends.let_go();
  server.wait_for("left_open", ends.pid());
  const auto board = status_page(server.dir());
  CHECK(filetimer::Duration{board->max_timeout} == 1h);
  CHECK(filetimer::Duration{board->default_timeout} == 30s);
  CHECK(board->warn_at == 1U << 31);  // half of the timeout
  CHECK(board->server_pid == server.pid());
  CHECK(server.stop() == exited(0));

  const RecordsDoc doc = read_records_doc();
  for (const filetimer::testing::Record& record : server.records()) {
    CAPTURE(record.line());
    const std::string event = event_of(record.line());
    REQUIRE(doc.contains(event));
    for (const std::string& name : fields_of(record.line())) {
      CAPTURE(name);
      CHECK(doc.at(event).fields.contains(name));
    }
  }
  check_fields("server_started", {server.records().front().line()});
  CHECK(settings_of(server) ==
        fmt::format(R"({{"default_timeout_s":30,"max_timeout_s":3600,"warn_at":0.5,)"
                    R"("max_wait_s":3600,"max_interval_s":3600,"grace_s":null,"kill_wait_s":30,)"
                    R"("evidence_timeout_s":2,"kill":"tree","stopped":"defer","evidence":"stacks",)"
                    R"("dry_run":false,"realtime":false,"on_expiry":false,"on_warning":false,)"
                    R"("evidence_command":false,"evidence_drop_ins":[],"log_max_bytes":67108864,)"
                    R"("metrics":"{}"}})",
                    temp.path("filetimer.prom")));
  Server with_command(
      temp, Server::Setup{
                .args = {"--kill", "process", "--stopped", "kill", "--dry-run", "--on-expiry",
                         "true", "--on-warning", "true", "--evidence-command", "true", "--evidence",
                         "proc", "--max-interval", "2s", "--kill-wait", "3s", "--grace", "4s"},
                .folder = "other",
                .command = {"false"}});
  const auto stopped = with_command.wait_for("server_stopped");
  CHECK(settings_of(with_command) ==
        R"({"max_wait_s":3600,"max_interval_s":2,"grace_s":4,"kill_wait_s":3,)"
        R"("evidence_timeout_s":2,"kill":"process","stopped":"kill","evidence":"proc",)"
        R"("dry_run":true,"realtime":false,)"
        R"("on_expiry":true,"on_warning":true,"evidence_command":true,)"
        R"("evidence_drop_ins":[],"log_max_bytes":67108864})");
  check_fields("server_stopped", {server.records().back().line(), stopped.line()});
}
