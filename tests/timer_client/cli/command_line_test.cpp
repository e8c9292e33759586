// The program timer_client, with the test as its server: the test reads the pipe and, if a test
// case needs it, kills as a server would.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace filetimer;
using cli::Program;
using testing::PipeFolder;

namespace {

// Checks the first line that the program prints, and its exit code.
void check_ends(std::vector<std::string> words, const std::string& line, int code) {
  Program program(std::move(words));
  CHECK(program.read_line() == line);
  CHECK(program.exit_code() == code);
}

// Returns the words that run a shell which ends so when the file is there.
std::vector<std::string> until_there(const testing::TempFolder& folder, const std::string& after,
                                     const std::string& end = "exit 3") {
  return {
      "run",       "--dir", folder.path(),
      "--timeout", after,   "--",
      "sh",        "-c",    "until [ -e " + folder.path("go") + " ]; do sleep 0.01; done; " + end};
}

void wait_past_deadline(const testing::Line& acquire) {
  while (static_cast<double>(ClockReading::now().wall_ns) / 1e9 < acquire.expiration_time) {
    ::poll(nullptr, 0, 1);
  }
}

// What a record says of a scope of this boot, which has just expired.
struct Expired {
  pid_t pid = 0;
  std::string scope = "sh";
  std::string boot = boot_id_text(this_boot());
  std::int64_t mono_ns = Instant::now().ns;
};

std::string record_of(const char* event, const Expired& expired, const std::string& fields = {}) {
  return fmt::format(R"({{"event":"{}","schema":1,"id":"n-1","mono_ns":{},"boot_id":"{}",)"
                     R"("pid":{},"scope":"{}"{}}})",
                     event, expired.mono_ns, expired.boot, expired.pid, expired.scope, fields) +
         "\n";
}

std::string kill_of(const Expired& expired, std::string_view verdict) {
  return record_of("expired", expired) + "{\"stage\":\"judged\"}\n" +
         record_of("killed", expired, fmt::format(R"(,"verdict":"{}")", verdict));
}

}  // namespace

TEST_CASE("run opens a scope on COMMAND, releases it and ends with COMMAND's status") {
  PipeFolder folder;
  Program program({"run", "--dir", folder.path(), "--timeout", "1h", "--signal", "TERM", "--grace",
                   "5s", "--warn-after", "30m", "--", "/bin/sh", "-c", "echo $$; exit 7"});
  const std::string pid = program.read_line();
  CHECK(program.exit_code() == 7);
  const auto acquire = folder.pipe.next();
  CHECK(std::to_string(acquire.pid) + "\n" == pid);
  CHECK(acquire.scope_id == "sh#process");  // COMMAND may itself open an "sh"
  CHECK(acquire.x_scope == "sh");
  CHECK(acquire.x_whole_process);
  CHECK(acquire.signal == SIGTERM);
  CHECK(acquire.x_timeout_s == 3600);
  CHECK(acquire.x_grace_s == 5);
  CHECK(acquire.x_soft_s == 1800);
  CHECK_FALSE(acquire.x_tid);
  const auto release = folder.pipe.next();
  CHECK(release.is_release());
  CHECK(release.pid == acquire.pid);
}

TEST_CASE("a scope of run has its whole name in records, as far as any scope has it") {
  PipeFolder folder;
  for (const std::size_t size : {247U, 248U, 255U, 256U}) {
    const std::string name(size, 'n');
    CHECK(Program({"run", "--dir", folder.path(), "--scope", name, "--", "true"}).exit_code() == 0);
    const auto acquire = folder.pipe.next();
    CHECK(acquire.x_scope == bounded_scope_name(name));
    // Else the server records the id.
    CHECK(acquire.scope_id.starts_with(bounded_scope_name(name)));
    CHECK(acquire.scope_id.size() <= kMaxScopeNameBytes);
    CHECK(folder.pipe.next().is_release());
  }
}

TEST_CASE("run ends with 124 if COMMAND was killed at its deadline, with 128+N before") {
  PipeFolder folder;
  for (const auto& [after, signal, ended_by, code] :
       {std::tuple(std::string("1ms"), "KILL", SIGKILL, 124),
        {"1ms", "TERM", SIGTERM, 124},
        {"1ms", "TERM", SIGKILL, 124},
        {"1ms", "KILL", SIGTERM, 128 + SIGTERM},
        {"1h", "KILL", SIGKILL, 128 + SIGKILL},
        {"inf", "KILL", SIGKILL, 128 + SIGKILL}}) {
    Program program({"run", "--dir", folder.path(), "--timeout", after, "--signal", signal, "--",
                     "sleep", "60"});
    const auto acquire = folder.pipe.next();
    if (after == "1ms") {
      wait_past_deadline(acquire);
    }
    ::kill(acquire.pid, ended_by);
    CHECK(program.read_line() ==
          (code == 124 ? "timer_client: 'sleep' expired after " + after + "\n" : ""));
    CHECK(program.exit_code() == code);
    CHECK(folder.pipe.next().is_release());
  }
}

TEST_CASE("run takes a verdict from the log, or from the file of the kill while that lacks it") {
  PipeFolder folder;
  testing::write_file(folder.path("expired.jsonl"), "");
  REQUIRE(::mkdir(folder.path("kills").c_str(), 0700) == 0);
  const auto check = [&](const char* file, const char* verdict, int code) {
    CAPTURE(verdict);
    Program program(until_there(folder, "1ms", "exit 7"));
    const auto acquire = folder.pipe.next();
    const pid_t pid = acquire.pid;
    const char* const other = code == 7 ? "dead" : "already_gone";
    testing::write_file(
        folder.path(file),
        kill_of({.pid = pid}, verdict) + kill_of({.pid = pid + 1}, other) +
            kill_of({.pid = pid, .scope = "inner"}, other) +
            kill_of({.pid = pid, .boot = "00000000-0000-0000-0000-000000000000"}, other) +
            kill_of({.pid = pid, .mono_ns = 1}, other));
    for (const char* of_others : {"kills/m-1", "kills/m-2", "kills/m-3", "kills/m-4"}) {
      testing::write_file(folder.path(of_others), "");
    }
    wait_past_deadline(acquire);  // before it, run asks no record
    testing::write_file(folder.path("go"), "");
    CHECK(program.read_line() ==
          (code == 124 ? "timer_client: 'sh' expired after 1ms: 'timer_client show n-1 --dir " +
                             folder.path() + "' says more\n"
                       : ""));
    CHECK(program.exit_code() == code);
    CHECK(folder.pipe.next().is_release());
    REQUIRE(::unlink(folder.path("go").c_str()) == 0);
    ::unlink(folder.path("kills/n-1").c_str());
  };
  check("kills/n-1", "dead", 124);
  check("kills/n-1", "already_gone", 7);
  check("expired.jsonl", "dead", 124);
  check("expired.jsonl", "unkillable", 124);
  check("expired.jsonl", "spared", 7);
  check("expired.jsonl", R"(spared","signals":[{"signal":15}],"reason":"it survived)", 124);
  check("expired.jsonl", "already_gone", 7);
}

TEST_CASE("run waits a second for the verdict on a COMMAND that was killed past its deadline") {
  constexpr auto kInTime = std::chrono::milliseconds{900};
  // It is judged before COMMAND ends, or not; the outcome comes later, or never if it is empty.
  const auto check = [&](bool is_judged, const std::string& outcome, int expected) {
    CAPTURE(outcome);
    CAPTURE(is_judged);
    for (bool is_in_time = false; !is_in_time;) {
      PipeFolder folder;
      Program program({"run", "--dir", folder.path(), "--timeout", "1ms", "--", "sleep", "60"});
      const auto acquire = folder.pipe.next();
      const Expired expired{.pid = acquire.pid, .scope = "sleep"};
      wait_past_deadline(acquire);
      folder.write("expired.jsonl", is_judged ? record_of("expired", expired) : "");
      const Instant killed = Instant::now();
      ::kill(acquire.pid, SIGKILL);
      CHECK(folder.pipe.next().is_release());
      if (!outcome.empty()) {
        folder.append("expired.jsonl", kill_of(expired, outcome));
      }
      is_in_time = Instant::now() < killed + kInTime;
      const int code = program.exit_code();
      CHECK((!is_in_time || code == expected));
    }
  };
  check(false, "dead", 124);
  check(false, "", 128 + SIGKILL);
  check(true, "already_gone", 128 + SIGKILL);
  check(true, "", 124);
}

TEST_CASE("a COMMAND that ended by itself while its kill waits for evidence has its own status") {
  for (const auto& [end, is_signalled, code] :  // a server notes a signal after it has sent it
       {std::tuple("exit 7", false, 7), {"exit 7", true, 124}, {"kill -9 $$", false, 124}}) {
    PipeFolder folder;
    REQUIRE(::mkdir(folder.path("kills").c_str(), 0700) == 0);
    Program program(until_there(folder, "1ms", end));
    const auto acquire = folder.pipe.next();
    testing::write_file(folder.path("kills/n-1"),
                        record_of("expired", {.pid = acquire.pid}) + "{\"stage\":\"judged\"}\n" +
                            (is_signalled ? "{\"stage\":\"signalled\",\"signal\":15}\n" : ""));
    wait_past_deadline(acquire);
    testing::write_file(folder.path("go"), "");
    CHECK(program.exit_code() == code);
  }
}

TEST_CASE("run passes signals on to COMMAND, which has the caller's signal mask") {
  PipeFolder folder;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGALRM, SIGPIPE,
                           SIGXCPU, SIGQUIT, SIGPWR}) {
    const std::string script = "trap 'exit 8' URG WINCH; trap 'exit 9' " + std::to_string(signal) +
                               "; grep SigBlk /proc/self/status; "
                               "while kill -0 $PPID; do sleep 0.02; done";
    Program program({"run", "--dir", folder.path(), "--", "sh", "-c", script});
    CHECK(program.read_line() == "SigBlk:\t0000000000000000\n");
    for (const int one : {SIGURG, SIGWINCH, signal}) {  // the first two are for run alone
      ::kill(program.pid(), one);
    }
    CHECK(program.exit_code() == 9);
  }
}

TEST_CASE("run sends its scope as soon as a server takes it") {
  PipeFolder folder;
  const std::size_t bytes = folder.pipe.fill();
  Program run(until_there(folder, "1h"));
  CHECK(run.read_line() == "timer_client: COMMAND is watched once a timer server runs\n");
  folder.pipe.drain(bytes);
  CHECK(folder.pipe.next().scope_id == "sh#process");
  testing::write_file(folder.path("go"), "");
  CHECK(run.exit_code() == 3);
  CHECK(folder.pipe.next().is_release());
  CHECK(folder.pipe.is_silent());
}

TEST_CASE("a COMMAND that no server has watched did not expire, however long it ran") {
  PipeFolder folder;
  const std::size_t bytes = folder.pipe.fill();
  Program run(until_there(folder, "1ms"));
  CHECK(run.read_line() != "");
  // The deadline was set before the line.
  const Instant behind = Instant::now() + std::chrono::milliseconds{1};
  while (Instant::now() < behind) {
    ::sched_yield();
  }
  testing::write_file(folder.path("go"), "");
  CHECK(run.exit_code() == 3);
  folder.pipe.drain(bytes);
  CHECK(folder.pipe.is_silent());
}

TEST_CASE("run starts nothing without a server") {
  const testing::TempFolder folder;
  check_ends({"run", "--dir", folder.path(), "--", "touch", folder.path("started")},
             "timer_client: no timer server at '" + folder.path("requests") +
                 "': there is no such pipe (tried for 2s)\n",
             125);
  CHECK(::access(folder.path("started").c_str(), F_OK) != 0);
}

TEST_CASE("the environment says whether COMMAND needs a server") {
  const testing::TempFolder folder;
  const std::string missing =
      "timer_client: no timer server at '" + folder.path("requests") + "': there is no such pipe\n";
  const auto check = [&](const char* name, const char* word, const std::string& line, int code) {
    CAPTURE(word);
    const testing::Variable variable(name, word);
    check_ends({"run", "--dir", folder.path(), "--", "sh", "-c", "exit 3"}, line, code);
  };
  check("FILETIMER_MISSING", "ignore", missing, 3);
  check("FILETIMER_MISSING", "raise", missing, 125);
  check("FILETIMER", "off", "", 3);
}

TEST_CASE("acquire and release apply to the calling process, under the given name") {
  PipeFolder folder;
  const std::string fifo = folder.path("requests");
  for (const char* const timeout : {"--timeout", "--after"}) {
    Program acquire({"acquire", "--fifo", fifo, "--scope", "copy", timeout, "10m"});
    CHECK(acquire.exit_code() == 0);
    const auto line = folder.pipe.next();
    CHECK(line.pid == ::getpid());
    CHECK(line.scope_id == "copy");
    CHECK(line.x_timeout_s == 600);
    CHECK(line.signal == SIGKILL);
  }
  const std::string longest(256, 'n');
  Program release(
      {"release", "--fifo", fifo, "--scope", longest, "--pid", "4711", "--log-level", "debug"});
  CHECK(release.read_line().ends_with("debug: sent to '" + fifo + "'\n"));
  CHECK(release.exit_code() == 0);
  const auto line = folder.pipe.next();
  CHECK(line.scope_id == bounded_scope_name(longest));
  CHECK(line.pid == 4711);
  CHECK(line.is_release());
}

TEST_CASE("acquire refuses the id of a thread, which the server watches as no process") {
  PipeFolder folder;
  std::jthread([&] {
    const std::string tid = std::to_string(::gettid());
    check_ends({"acquire", "--dir", folder.path(), "--scope", "x", "--timeout", "5", "--pid", tid},
               "timer_client: pid " + tid +
                   " is not a process's own id (a thread's?): expected a process\n",
               2);
  }).join();
  CHECK(folder.pipe.is_silent());
}

TEST_CASE("acquire fails for a full pipe and without a server, with different exit codes") {
  PipeFolder folder;
  folder.pipe.fill();
  const std::vector<std::string> release{"release", "--dir", folder.path(), "--scope", "x"};
  check_ends(release,
             "timer_client: the server does not read its pipe '" + folder.pipe.path() +
                 "': it was full for 1s\n",
             1);
  folder.pipe.close();
  check_ends(release,
             "timer_client: no timer server at '" + folder.pipe.path() + "': no process reads it\n",
             4);
}

TEST_CASE("acquire waits for room in a full pipe, and for a server that is being restarted") {
  const auto check = [](bool is_full, std::chrono::milliseconds patience) {
    CAPTURE(is_full);
    for (bool is_in_time = false; !is_in_time;) {
      PipeFolder folder;
      const std::size_t bytes = is_full ? folder.pipe.fill() : 0;
      if (!is_full) {
        folder.pipe.close();
      }
      const Instant begun = Instant::now();
      Program acquire({"acquire", "--dir", folder.path(), "--scope", "x", "--timeout", "1h"});
      ::poll(nullptr, 0, 100);
      if (is_full) {
        folder.pipe.drain(bytes);
      } else {
        folder.pipe.open();
      }
      is_in_time = Instant::now() < begun + patience;
      const int code = acquire.exit_code();
      CHECK((!is_in_time || code == 0));
      CHECK((!is_in_time || folder.pipe.next().scope_id == "x"));
    }
  };
  check(true, std::chrono::milliseconds{900});
  check(false, std::chrono::milliseconds{200});
}

TEST_CASE("no pid is written if the last server was in another pid namespace, or a later one is") {
  FILETIMER_SKIP_IF(this_pid_namespace() == 0, "/proc does not tell this process's pid namespace");
  PipeFolder folder;  // as a service manager holds it between two servers
  Program watched(until_there(folder, "1h"));
  CHECK(folder.pipe.next().scope_id == "sh#process");
  cli::write_board(folder, [](Board& board) { board.pid_namespace = this_pid_namespace() + 1; });
  testing::write_file(folder.path("go"), "");
  CHECK(watched.exit_code() == 3);
  Program acquire({"acquire", "--dir", folder.path(), "--scope", "copy", "--timeout", "10m"});
  CHECK(acquire.read_line().find("another pid namespace") != std::string::npos);
  CHECK(acquire.exit_code() == 4);
  CHECK(Program({"release", "--dir", folder.path(), "--scope", "copy"}).exit_code() == 4);
  Program run({"run", "--dir", folder.path(), "--", "touch", folder.path("started")});
  CHECK(run.exit_code() == 125);
  CHECK(::access(folder.path("started").c_str(), F_OK) != 0);
  const testing::Variable off("FILETIMER", "off");
  Program unwatched({"run", "--dir", folder.path(), "--", "sh", "-c", "exit 3"});
  CHECK(unwatched.exit_code() == 3);
  Program started({"acquire", "--dir", folder.path(), "--scope", "copy", "--timeout", "10m"});
  CHECK(started.exit_code() == 0);
  CHECK(Program({"release", "--dir", folder.path("none"), "--scope", "x"}).exit_code() == 0);
  CHECK(folder.pipe.is_silent());
}

TEST_CASE("wrong usage is one line that quotes the word, and an exit code") {
  // In the command '' is an empty word.
  const auto check = [](const std::string& command, int code, const std::string& line) {
    CAPTURE(command);
    Program program(cli::split_words(command));
    CHECK(program.read_line() == "timer_client: " + line + "\n");
    CHECK(program.read_line() == "");
    CHECK(program.exit_code() == code);
  };
  check("", 2, "no subcommand: see timer_client --help");
  check("rum", 2, "unexpected 'rum': did you mean 'run'?");
  check("lst", 2, "unexpected 'lst': did you mean 'list'?");
  check("--dir /none list", 2, "list: unexpected '--dir': expected options after 'list'");
  check("kilt", 2,  // half of 'list'
        "unexpected 'kilt': expected one of run acquire release list dump status show report log "
        "suggest ping drain shutdown rendezvous");
  check("release --scope x --pid 99999999999", 2,
        "release: --pid: '99999999999': expected a whole number from 0 to 2147483647");
  check("log --event kiled", 2, "log: --event: unknown event 'kiled': did you mean 'killed'?");
  check("acquire --scope x", 2, "acquire: --timeout is required");
  check("acquire --scope x --timeout 2h --after 5", 2,
        "acquire: expected one of --timeout and --after");
  check("run --timeout 1h", 125, "run: no COMMAND: expected '-- COMMAND [ARG...]' at the end");
  check("run --bogus -- x", 125, "run: unexpected '--bogus': see timer_client run --help");
  check("run x", 125, "run: unexpected 'x': expected '-- COMMAND [ARG...]' at the end");
  check("release --scoep x", 2, "release: unexpected '--scoep': see timer_client release --help");
  check("release --pid 2", 2, "release: --scope is required");
  check("rendezvous --world 2 --timeout 1s", 2, "rendezvous: --rank is required");
  check("rendezvous --rank 0 --timeout 1s", 2, "rendezvous: --world is required");
  check("rendezvous --rank 0 --world 2", 2, "rendezvous: --timeout is required");
  check("ping list", 2, "ping: unexpected 'list': see timer_client ping --help");
  check("log --follow=maybe", 2, "log: --follow: 'maybe': expected no value");
  check("release --scope ''", 2, "release: --scope: '': expected a name");
  check("release --scope= --pid 1", 2, "release: --scope: '': expected a name");
  check("run --scope= --timeout=2h -- x", 125, "run: --scope: '': expected a name");
  check("list --fifo /none", 2,
        "list: --fifo: the runtime directory of '/none' is not known: expected --dir DIR");
  check("release --scope x --pid 0", 2,
        "process 0 is not watched: expected --pid PID, a number over 1");
  check("release --scope x --pid 1", 2,
        "process 1 is not watched: expected --pid PID, a number over 1");
  check("acquire --scope x --timeout 5 --pid 2147483647 --dir /none", 1,
        "cannot watch process 2147483647: No such process");
  check(
      "run --signal 999 -- x", 125,
      "run: --signal: '999' is not a signal: expected a name such as TERM or SIGTERM, or a number "
      "from 0 to 64");
  check(
      "run --timeout 5s --warn-after 5s -- x", 125,
      "--warn-after: the warning is after 5s: expected more than 0 and less than the timeout, 5s");
  check(
      "acquire --scope x --timeout 5s --warn-after 1m", 2,
      "--warn-after: the warning is after 1m: expected more than 0 and less than the timeout, 5s");
  check("acquire --scope x --timeout 5s --warn-after soon", 2,
        "acquire: --warn-after: 'soon' is not a duration: expected a positive number with an "
        "optional unit (us, ms, s, m, h, d), such as 30, 1.5 or 500ms, or inf");
}

TEST_CASE("help has the value of each option in capitals, what it means, and the exit codes") {
  const std::string option = R"(^  (-[a-z],)?--[a-z-]+( [A-Z]+)?( \.\.\.)?( REQUIRED)?  +.* .*$)";
  for (const char* command : {"run", "acquire", "release", "list", "log", "show", "report",
                              "suggest", "ping", "dump", "drain", "shutdown", "rendezvous"}) {
    Program program({command, "--help"});
    std::size_t options = 0;
    bool has_exit_codes = false;
    bool has_usage = std::string_view(command) != "run";
    for (std::string line = program.read_line(); !line.empty(); line = program.read_line()) {
      if (line.starts_with("  -")) {
        CHECK_MESSAGE(!testing::match_of(line, option).empty(), line);
        ++options;
      }
      has_exit_codes = has_exit_codes || line.starts_with("Exit codes: ");
      has_usage = has_usage || line == "Usage: timer_client run [OPTIONS] -- COMMAND [ARG...]\n";
    }
    CHECK(options > 4);
    CHECK(has_exit_codes);
    CHECK(has_usage);
    CHECK(program.exit_code() == 0);
  }
  Program all({"--help"});
  std::string text;
  for (std::string line = all.read_line(); !line.empty(); line = all.read_line()) {
    text += line;
  }
  CHECK(testing::contains(text, "\nWatch:\n  run "));
  CHECK(testing::contains(text, "\nControl the server:\n  ping "));
}

TEST_CASE("help and version fail where they cannot be written") {
  for (const std::string word : {"--help", "--version", "run --help"}) {
    const std::string command = "'" TIMER_CLIENT_PROGRAM "' " + word + " >/dev/full 2>/dev/null";
    CHECK(WEXITSTATUS(std::system(command.c_str())) == 1);
  }
}

TEST_CASE("all words after -- belong to COMMAND, options and dashes, too, or are files") {
  PipeFolder folder;
  folder.write("log", "");
  check_ends({"log", "--", folder.path("log")},
             "timer_client: no records in '" + folder.path("log") + "'\n", 0);
  check_ends({"run", "--dir", folder.path(), "--", "echo", "--help", "--", "--timeout"},
             "--help -- --timeout\n", 0);
}

TEST_CASE("run ends with 127 for a missing COMMAND, with 126 for one that cannot be run") {
  PipeFolder folder;
  check_ends({"run", "--dir", folder.path(), "--", "no-such-command"},
             "timer_client: cannot run 'no-such-command': No such file or directory\n", 127);
  CHECK(Program({"run", "--dir", folder.path(), "--", folder.path()}).exit_code() == 126);
  CHECK(folder.pipe.is_silent());
  // As execvp() does, it gives a script without `#!` to the shell.
  const std::string script = folder.path("script");
  testing::write_file(script, "echo $0 $1");
  REQUIRE(::chmod(script.c_str(), 0700) == 0);
  ::setenv("PATH", ("/none:" + folder.path() + ":" + ::getenv("PATH")).c_str(), 1);
  for (const std::string& word : {script, std::string("script")}) {
    check_ends({"run", "--fifo", folder.pipe.path(), "--", word, "--of", "rest"},
               script + " --of\n", 0);
  }
}
