// timer_server -- COMMAND: the server of one job, which starts its launcher, as `timeout` and `env`
// do.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Runs COMMAND to its end under a server, in the directory `run` of the folder.
Finished run_command(const std::vector<std::string>& command, const Environment& environment = {},
                     const TempFolder& temp = TempFolder()) {
  std::vector<std::string> args{"--dir", temp.path("run"), "--"};
  args.insert(args.end(), command.begin(), command.end());
  return run_server(args, environment);
}

// A COMMAND that reports every signal it gets, and its server.
class Caught {
 public:
  explicit Caught(std::vector<std::string> args = {})
      : server({.args = std::move(args), .command = {worker_path(), "catch-signals"}}) {
    wait_for_line("ready");
    const std::string line = server.out();
    pid = std::stoi(line.substr(line.find("pid=") + 4));
  }
  void wait_for_line(const std::string& line) const {
    REQUIRE(wait_until([&] { return contains(server.out(), line); }));
  }

  Server server;
  pid_t pid = 0;
};

}  // namespace

TEST_CASE("the status of COMMAND is passed on, and that of a signal is 128 plus its number") {
  for (const int status : {0, 1, 2, 3, 8, 77, 124, 125, 255}) {
    CAPTURE(status);
    CHECK(run_command({"/bin/sh", "-c", fmt::format("exit {}", status)}).status == exited(status));
  }
  for (const int signal : {SIGKILL, SIGTERM, SIGSEGV, SIGABRT, SIGINT, SIGHUP}) {
    CAPTURE(signal);
    CHECK(run_command({"/bin/sh", "-c", fmt::format("kill -{} $$", signal)}).status ==
          exited(128 + signal));
  }
}

TEST_CASE("a server whose standard descriptors are closed gives their numbers to no other file") {
  const TempFolder temp;
  const std::string look =
      fmt::format("for n in 0 1 2; do readlink /proc/$PPID/fd/$n; done >'{}'", temp.path("out"));
  CHECK(run("/bin/sh", {"-c", "exec \"$@\" <&- >&- 2>&-", "sh", server_path(), "--dir",
                        temp.path("run"), "--", "/bin/sh", "-c", look})
            .status == exited(0));
  CHECK(read_file(temp.path("out")) == "/dev/null\n/dev/null\n/dev/null\n");
}

TEST_CASE("a COMMAND that does not exist gives 127, one that cannot be executed 126") {
  const TempFolder temp;
  write_file(temp.path("text"), "no program");
  struct Row {
    std::string command;
    int status;
  };
  for (const Row& row : std::vector<Row>{{temp.path("missing"), 127},
                                         {"no-such-program-on-the-path", 127},
                                         {temp.path("text"), 126},
                                         {temp.path(), 126}}) {
    CAPTURE(row.command);
    // A folder of $PATH that may not be searched would turn ENOENT into EACCES.
    const Finished finished = run_command({row.command}, {{"PATH", "/usr/bin:/bin"}}, temp);
    check_failure(finished, row.status, row.command);
    CHECK(finished.out.empty());
    CHECK_FALSE(exists(temp.path("run/requests")));
    CHECK(contains(read_log(temp.path("run/expired.jsonl")).back().text("reason"),
                   "cannot run '" + row.command + "': "));
  }
}

TEST_CASE("a server that fails before COMMAND gives 125 and does not start it") {
  const TempFolder temp;
  const std::string file = temp.path("file");
  write_file(file, "");
  const Server other(temp);
  struct Row {
    std::vector<std::string> args;
    std::string says;
  };
  for (const Row& row :
       {Row{{"--dir", file}, file},
        Row{{},  // there is no place for the log
            fmt::format(
                "timer_server: error: cannot make the folder '{}/filetimer': Not a directory\n",
                file)},
        Row{{"--dir", other.dir()}, std::to_string(other.pid())}}) {
    CAPTURE(row.says);
    std::vector<std::string> args = row.args;
    args.insert(args.end(), {"--", "/bin/sh", "-c", "echo ran"});
    const Finished finished =
        run_server(args, {{"XDG_RUNTIME_DIR", temp.path()}, {"XDG_STATE_HOME", file}});
    CHECK(finished.status == exited(125));
    CHECK(finished.out.empty());
    CHECK((row.says.ends_with('\n') ? finished.err == row.says : contains(finished.err, row.says)));
  }
}

TEST_CASE("COMMAND has what follows --, directory and pipe in variables, and its own output") {
  const TempFolder temp;
  const Finished finished =
      run_command({"/bin/sh", "-c",
                   "echo $0 $@; echo err >&2; echo $FILETIMER_DIR $TORCHELASTIC_TIMER_FILE $KEPT "
                   "${TORCHELASTIC_ENABLE_FILE_TIMER-none} ${NOTIFY_SOCKET-none}",
                   "--help", "--dir", "x", "--", "--version"},
                  {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"},  // torchrun keeps the pipe without it
                   {"TORCHELASTIC_TIMER_FILE", "/old/pipe"},
                   {"FILETIMER_DIR", "/old/dir"},
                   {"KEPT", "as it was"}},
                  temp);
  CHECK(finished.status == exited(0));
  CHECK(finished.out ==
        fmt::format("--help --dir x -- --version\n{0} {0}/requests as it was none none\n",
                    temp.path("run")));
  CHECK(contains(finished.err, "ready dir=" + temp.path("run")));
  CHECK(contains(finished.err, "err\n"));
  CHECK(finished.err.find("ready dir=") < finished.err.find("err\n"));
}

TEST_CASE("standard input is COMMAND's alone") {
  const TempFolder temp;
  const std::string text(100'000, 'x');
  write_file(temp.path("in"), text + "end\n");
  const filetimer::UniqueFd in(::open(temp.path("in").c_str(), O_RDONLY | O_CLOEXEC));
  Server server(temp, Server::Setup{.command = {"/bin/cat"}, .in = in.get()});
  CHECK(server.process().status() == exited(0));
  CHECK(server.out() == text + "end\n");
}

TEST_CASE("without a named directory COMMAND gets a fresh one, which is removed at the end") {
  const TempFolder temp;
  const Environment environment{{"XDG_RUNTIME_DIR", temp.path()},
                                {"XDG_STATE_HOME", temp.path("state")}};
  // As with a umask of 002, which many systems give their users: their group has no other member.
  std::filesystem::create_directory(temp.path("state"));
  std::filesystem::permissions(temp.path("state"), std::filesystem::perms(0775));
  const auto run = [&] {
    return run_server({"--", "/bin/sh", "-c", "echo FILETIMER_DIR=$FILETIMER_DIR; umask"},
                      environment);
  };
  const Finished first = run();
  const Finished second = run();
  CHECK(first.status == exited(0));
  CHECK(first.out.starts_with("FILETIMER_DIR=" + temp.path("filetimer/")));
  CHECK(first.out.ends_with("\n" + filetimer::testing::run("/bin/sh", {"-c", "umask"}).out));
  CHECK(second.out != first.out);
  CHECK(std::filesystem::is_empty(temp.path("filetimer")));
  // The log is elsewhere and stays.
  const std::string log = first.err.substr(first.err.find("log=") + 4);
  CHECK(exists(log.substr(0, log.find(' '))));
  CHECK(std::filesystem::status(temp.path("state/filetimer")).permissions() ==
        std::filesystem::perms::owner_all);
}

TEST_CASE("a COMMAND whose server cannot use the default directory gets a private one in $TMPDIR") {
  const TempFolder temp;
  write_file(temp.path("filetimer"), "");  // the name is taken
  const Finished finished =
      run_server({"--log", temp.path("log"), "--", "/bin/sh", "-c", "echo $FILETIMER_DIR"},
                 {{"XDG_RUNTIME_DIR", temp.path()}, {"TMPDIR", temp.path()}});
  CHECK(finished.status == exited(0));
  const std::string dir = finished.out.substr(0, finished.out.find('\n'));
  CHECK(dir.starts_with(temp.path("filetimer-")));
  CHECK(contains(finished.err, fmt::format("; the directory is '{}'\n", dir)));
  CHECK_FALSE(exists(dir));
}

TEST_CASE("workers that outlive COMMAND leave their statistics in the log of a fresh folder") {
  const TempFolder temp;
  for (const char* const fifo : {"in", "out"}) {
    REQUIRE(::mkfifo(temp.path(fifo).c_str(), 0600) == 0);
  }
  // The worker ends at the end of its input, with this test.
  const filetimer::UniqueFd in(::open(temp.path("in").c_str(), O_RDWR | O_CLOEXEC));
  const std::string script = fmt::format(
      "sh -c '{0} < {1} > {2}; :' & exec 3< {2};"
      "read ready <&3; echo connect > {1}; read a <&3;"
      "echo open forward 60000 > {1}; read b <&3;"
      "echo release forward > {1}; read c <&3; echo $a $b $c",
      program_path("client_worker"), temp.path("in"), temp.path("out"));
  const Finished finished =
      run_server({"--log", temp.path("log"), "--", "/bin/sh", "-c", script},
                 {{"XDG_RUNTIME_DIR", temp.path()}, {"XDG_STATE_HOME", temp.path("state")}});
  CHECK(finished.out == "yes yes yes\n");
  const Records records = read_log(temp.path("log"));
  const Records ended = of_event(records, "worker_ended");
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].array("scopes").at(0)["count"].get_int64().value() == 1);
  CHECK(records.back().is("server_stopped"));
}

TEST_CASE("a server that cannot start to serve leaves neither pipe nor fresh directory behind") {
  const TempFolder temp;
  temp.write("fault", "");
  Environment environment = on_bad_disk(temp, "BAD_DISK_NO_WATCH").environment;
  environment["XDG_RUNTIME_DIR"] = temp.path();
  environment["XDG_STATE_HOME"] = temp.path("state");
  CHECK(run_server({"--", "/bin/true"}, environment).status == exited(125));
  CHECK(std::filesystem::is_empty(temp.path("filetimer")));
  CHECK(run_server({"--dir", temp.path("run")}, environment).status == exited(1));
  CHECK_FALSE(exists(temp.path("run/requests")));
}

TEST_CASE("fresh directories of killed servers are removed, and those in use are kept") {
  const TempFolder temp;
  const Environment environment{{"XDG_RUNTIME_DIR", temp.path()},
                                {"XDG_STATE_HOME", temp.path("state")}};
  const Server::Setup setup{
      .environment = environment, .with_dir = false, .command = {worker_path(), "block"}};
  Server serving(temp, setup);
  Server killed_just_now(temp, setup);
  Server abandoned(temp, setup);
  killed_just_now.kill();
  abandoned.kill();
  CHECK(exists(abandoned.fifo()));
  const std::filesystem::path parent = std::filesystem::path(abandoned.dir()).parent_path();
  const auto make_folder = [&](const std::filesystem::path& name, std::chrono::minutes age) {
    std::filesystem::create_directory(parent / name);
    std::filesystem::last_write_time(parent / name,
                                     std::filesystem::file_time_type::clock::now() - age);
    return parent / name;
  };
  make_folder(serving.dir(), 2h);
  make_folder(abandoned.dir(), 70min);
  const auto named_by_a_user = make_folder("run-mine", 2h);
  const auto with_a_log = make_folder("run-1-abcdef", 2h);
  write_file(with_a_log / "expired.jsonl", "");
  const auto with_something_else = make_folder("run-2-abcdef", 2h);
  std::filesystem::create_symlink("elsewhere", with_something_else / "server");
  for (const auto& old : {with_a_log, with_something_else}) {
    make_folder(old, 2h);  // what was made in it has made it new
  }
  const auto half_made = make_folder("run-3-abcdef", 2h);
  const auto being_made = make_folder("run-4-abcdef", 50min);
  const Finished next = run_server({"--", "/bin/true"}, environment);
  CHECK(next.status == exited(0));
  CHECK_FALSE(exists(abandoned.dir()));
  CHECK_FALSE(exists(half_made));
  for (const auto& kept : {named_by_a_user, with_a_log, with_something_else, being_made}) {
    CHECK(exists(kept));
  }
  CHECK(exists(killed_just_now.fifo()));
  CHECK(exists(serving.fifo()));
}

TEST_CASE("a start removes 64 abandoned directories, and leaves further ones to the next start") {
  const TempFolder temp;
  const std::filesystem::path parent = temp.make_folder("filetimer");
  for (int i = 0; i < 65; ++i) {
    const std::filesystem::path folder = parent / fmt::format("run-{}-abcdef", i);
    std::filesystem::create_directory(folder);
    std::filesystem::last_write_time(folder, std::filesystem::file_time_type::clock::now() - 2h);
  }
  const auto count_after_a_start = [&] {
    CHECK(run_server({"--", "/bin/true"}, {{"XDG_RUNTIME_DIR", temp.path()}}).status == exited(0));
    return std::distance(std::filesystem::directory_iterator(parent), {});
  };
  CHECK(count_after_a_start() == 1);
  CHECK(count_after_a_start() == 0);
}

TEST_CASE("signals are forwarded to COMMAND, for whose end a server waits that is asked to end") {
  for (const int end : {SIGINT, SIGTERM}) {
    CAPTURE(end);
    Caught caught;
    for (const int signal : {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, end}) {
      CAPTURE(signal);
      ::kill(caught.server.pid(), signal);
      caught.wait_for_line(fmt::format("signal {}\n", signal));
    }
    CHECK(caught.server.process().is_alive());
    ::kill(caught.pid, SIGKILL);
    CHECK(caught.server.process().status() == exited(128 + SIGKILL));
  }
}

TEST_CASE("a SIGINT that the caller ignores neither drains the server nor kills COMMAND") {
  // As of a server that a script starts in background, at Ctrl-C.
  Server server(
      {.command = {worker_path(), "block"}, .in_child = [] { std::signal(SIGINT, SIG_IGN); }});
  server.process().signal(SIGINT);
  server.barrier();  // a scope that is new is judged
  server.process().signal(SIGINT);
  server.barrier();
  CHECK(server.stop() == exited(128 + SIGTERM));
}

TEST_CASE("a COMMAND that renews its scope while the server drains is not killed") {
  // Renewed every 0.2 s by a deadline 3 to 4 s away, for 5 s after SIGTERM.
  const std::string script = R"(trap '' TERM; i=0; while [ $i -lt 25 ]; do
    printf '{"version": 1, "pid": %d, "scope_id": "save", "expiration_time": %d, "signal": 9}\n' \
      $$ $(($(date +%s) + 4)) > "$TORCHELASTIC_TIMER_FILE"
    [ $i = 0 ] && echo saving; i=$((i + 1)); sleep 0.2; done; exit 7)";
  Server server(Server::Setup{.command = {"sh", "-c", script}});
  REQUIRE(wait_until([&] { return contains(server.out(), "saving"); }));
  CHECK(server.stop() == exited(7));
  CHECK(count(server.records(), "expired") == 0);
}

TEST_CASE("a second SIGTERM kills COMMAND and its descendants") {
  Server server(Server::Setup{.command = {worker_path(), "ignore-term-tree"}});
  REQUIRE(
      wait_until([&] { return contains(server.out(), "ready") && server.out().back() == '\n'; }));
  std::vector<HeldPid> descendants;
  const std::string line = server.out();
  for (std::size_t at = line.find('='); at != line.npos; at = line.find('=', at + 1)) {
    descendants.emplace_back(std::stoi(line.substr(at + 1)));
  }
  REQUIRE(descendants.size() == 4);
  // Two equal signals that are pending are one: the first has been seen when scopes are refused.
  server.begin_stop();
  REQUIRE(server.process().is_alive());
  CHECK(server.stop() == exited(128 + SIGKILL));
  for (const HeldPid& descendant : descendants) {
    CHECK(descendant.ends_within(kBound));
  }
}

TEST_CASE("a rank that hangs in a scope is killed and recorded, and its launcher's status kept") {
  const TempFolder temp;
  // A launcher of two ranks. Within the second the server reads the rank of the one that hangs.
  const std::string launcher = fmt::format(
      "{0} block > /dev/null & healthy=$!; RANK=1 {0} hang exchange 1 & hung=$!; wait $hung; "
      "echo $hung $?; kill -KILL $healthy; exit 7",
      worker_path());
  const Finished finished = run_command({"/bin/sh", "-c", launcher}, {}, temp);
  CHECK(finished.status == exited(7));
  CHECK(finished.out.ends_with(fmt::format(" {}\n", 128 + SIGKILL)));
  const pid_t pid = std::stoi(finished.out);
  const Records records = read_log(temp.path("run/expired.jsonl"));
  const Records killed = of_event(records, "killed");
  REQUIRE(killed.size() == 1);
  CHECK(killed[0].integer("pid") == pid);
  CHECK(killed[0].text("scope") == "exchange");
  CHECK(killed[0].text("verdict") == "dead");
  CHECK(killed[0].integer("rank") == 1);
  CHECK(records.back().is("server_stopped"));
}

TEST_CASE("COMMAND and hooks have the settings of the server's caller, and none of the server's") {
  const TempFolder temp;
  const std::string inherited = worker_path() + " inherited";
  const auto run_as_caller = [&](std::vector<std::string> argv, const std::string& name) {
    Child child({.argv = std::move(argv), .out = temp.path(name), .in_child = [] {
                   // As under a shell with `trap '' INT`, and a parent with a blocked signal.
                   std::signal(SIGINT, SIG_IGN);
                   std::signal(SIGUSR2, SIG_IGN);
                   const sigset_t set = filetimer::signal_set({SIGUSR1, SIGWINCH});
                   ::sigprocmask(SIG_BLOCK, &set, nullptr);
                   const rlimit files{512, 2048};
                   ::setrlimit(RLIMIT_NOFILE, &files);
                   (void)!::nice(3);
                   // As of a service that is to be killed first.
                   const int oom = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
                   (void)!::write(oom, "731", 3);
                 }});
    return child.status();
  };
  CHECK(run_as_caller({"/bin/sh", "-c", inherited + "; :"}, "alone") == exited(0));
  CHECK(run_as_caller({server_path(), "--dir", temp.path("run"), "--realtime", "--on-expiry",
                       inherited + " > " + temp.path("hook") + "; :", "--", "/bin/sh", "-c",
                       inherited + "; exec " + worker_path() + " hang s 0.05"},
                      "served") == exited(128 + SIGKILL));
  const std::string alone = read_file(temp.path("alone"));
  CHECK((contains(alone, "SigIgn") && contains(alone, "oom_score_adj")));
  CHECK(read_file(temp.path("served")) == alone);
  const std::string settings = alone.substr(0, alone.find("open files"));
  CHECK(read_file(temp.path("hook")) == settings + "open files 1\n");  // its own
}

TEST_CASE("a descriptor that the caller left open for COMMAND is open in COMMAND") {
  const TempFolder temp;
  write_file(temp.path("seven"), "from descriptor 7\n");
  const std::string path = temp.path("seven");
  Child child({.argv = {server_path(), "--dir", temp.path("run"), "--", "/bin/sh", "-c",
                        "cat <&7; : >&8 && echo 8 is open"},
               .out = temp.path("out"),
               .in_child = [&] {
                 // As `7<file` in a shell. No O_CLOEXEC: if 7 is the next free one, dup2()
                 // has nothing to do and would leave that flag.
                 ::dup2(::open(path.c_str(), O_RDONLY), 7);
                 ::dup2(STDERR_FILENO, 8);
               }});
  CHECK(child.status() == exited(0));
  CHECK(read_file(temp.path("out")) == "from descriptor 7\n8 is open\n");
}

TEST_CASE("with --realtime the server has real-time priority, and COMMAND does not") {
  const Caught caught({"--realtime"});
  CHECK(::sched_getscheduler(caught.pid) == SCHED_OTHER);
  const int policy = ::sched_getscheduler(caught.server.pid());
  if (policy == SCHED_OTHER) {
    caught.server.wait_for_message("--realtime is not allowed here");
    FILETIMER_SKIP("real-time scheduling is not allowed here");
  }
  CHECK(policy == (SCHED_RR | SCHED_RESET_ON_FORK));
}
