// The commands of timer_client with a real timer_server, also one whose log is elsewhere, or whose
// directory is inside the default one; and the messages of both by --log-level.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>

#include "tests/process/worker.hpp"
#include "tests/support/children.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// A shell with timer_client in $T.
ExitStatus run_shell(const Server& server, const std::string& script) {
  return run("/bin/sh", {"-c", script}, {{"FILETIMER_DIR", server.dir()}, {"T", client_path()}})
      .status;
}

// Asks for a scope of the process, or of the one that asks.
Finished run_acquire(const Server& server, const std::string& scope, std::optional<pid_t> pid = {},
                     const std::string& timeout = "1h") {
  std::vector<std::string> words{"acquire", "--scope", scope, "--timeout", timeout};
  if (pid) {
    words.insert(words.end(), {"--pid", std::to_string(*pid)});
  }
  return run_client(server, words);
}

}  // namespace

TEST_CASE("run exits 124 when COMMAND was killed, and the record has COMMAND's name") {
  Server server({"--max-timeout", "200ms"});
  const Finished ran = run_client(server, {"run", "--timeout", "1h", "--", "sleep", "100"});
  CHECK(ran.status == exited(124));
  const Record killed = server.wait_for("killed");
  CHECK(ran.err == "timer_client: 'sleep' expired after 200ms: 'timer_client show " +
                       killed.text("id") + "' says more\n");
  CHECK(killed.text("scope") == "sleep");
  CHECK(killed.text("comm") == "sleep");
  CHECK(killed.text("verdict") == "dead");
  CHECK(killed.signals() == std::vector<int>{SIGKILL});
  const Record expired = server.wait_for("expired");
  CHECK(expired.number("timeout_s") == doctest::Approx(0.2));
  server.barrier();
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire exits 6 for a process that has started the server") {
  Server server;
  check_failure(
      run_acquire(server, "s"), 6,
      fmt::format("process {} has started the timer server {}", ::getpid(), server.pid()));
  check_failure(run_acquire(server, "s", server.pid()), 6,
                "is the timer server, which cannot watch itself");
}

TEST_CASE("acquire exits 6 for a process of another user, whether real or effective") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  Server server;
  for (const auto& [real, effective] : {std::pair<uid_t, uid_t>{kSomebodyElse, kSomebodyElse},
                                        {kSomebodyElse, 0},
                                        {0, kSomebodyElse}}) {
    const filetimer::Child other([real = real, effective = effective] {
      if (::setresuid(real, effective, effective) != 0) {
        ::_exit(1);
      }
    });
    check_failure(run_acquire(server, "s", other.pid()), 6,
                  fmt::format("process {} belongs to user {}: expected a process of user 0",
                              other.pid(), kSomebodyElse));
  }
}

TEST_CASE("run of root starts no COMMAND that another user's server would not watch") {
  FILETIMER_SKIP_IF(!can_become(kSomebodyElse), kCannotBecome);
  const TempFolder temp("/tmp");  // other users may not reach $TMPDIR
  REQUIRE(::chown(temp.path().c_str(), kSomebodyElse, kSomebodyElse) == 0);
  const Server server(temp, Server::Setup{.user = kSomebodyElse});
  check_failure(run_client(server, {"run", "--timeout", "1h", "--", "true"}), 125,
                fmt::format("belongs to user 0: expected a process of user {}", kSomebodyElse));
  CHECK(run(client_path(), {"run", "--", "true"},
            {{"FILETIMER_DIR", server.dir()}, {"FILETIMER", "off"}})
            .status == exited(0));
}

TEST_CASE("run exits 124 when COMMAND was killed by SIGKILL after the grace period") {
  Server server;
  CHECK(run_client(server, {"run", "--timeout", "2s", "--signal", "TERM", "--grace", "100ms",
                            "--scope", "stubborn", "--", worker_path(), "ignore-term"})
            .status == exited(124));
  const Record killed = server.wait_for("killed");
  CHECK(killed.text("scope") == "stubborn");
  CHECK(killed.signals() == std::vector<int>{SIGTERM, SIGKILL});
  const std::string longest(255, 'n');
  CHECK(run_client(server, {"run", "--timeout", "200ms", "--scope", longest, "--", "sleep", "100"})
            .status == exited(124));
}

TEST_CASE("a COMMAND that ends in time leaves no record, however short it is") {
  Server server;
  for (int i = 0; i < 50; ++i) {
    CHECK(run_client(server, {"run", "--timeout", "1h", "--", "true"}).status == exited(0));
  }
  CHECK(run_client(server, {"run", "--timeout", "1h", "--", "sh", "-c", "sleep 0.1; exit 3"})
            .status == exited(3));
  server.barrier();
  CHECK(server.stop() == exited(0));
  const Records records = server.records();
  // All of them arrived; the barrier is one.
  CHECK(records.back().integer("requests") == 2 * 51 + 1);
  CHECK(records.back().array("left").size() == 0);
  CHECK(count(records, "rejected") == 0);
  CHECK(count(records, "left_open") == 0);
  CHECK(count(records, "expired") == 1);  // the barrier's
}

TEST_CASE("acquire in a shell watches that shell, also after it executes another program") {
  Server server;
  CHECK(run_shell(server, "$T acquire --scope x --timeout 300ms; exec sleep 100") ==
        killed_by(SIGKILL));
  const Record killed = server.wait_for("killed");
  CHECK(killed.text("scope") == "x");
  CHECK(killed.text("verdict") == "dead");
}

TEST_CASE("a shell that releases its scope leaves nothing open, one that does not is recorded") {
  Server server;
  // The shell ends after the server has read its requests, because its pid is unused afterwards.
  const std::string until_read =
      "&& $T acquire --scope marker$$ --timeout 1ms --signal 0 && until grep -q "
      "\"\\\"marker$$\\\",\\\"verdict\\\"\" $FILETIMER_DIR/expired.jsonl; do sleep 0.01; done && ";
  const std::string released =
      "$T acquire --scope kept --timeout 1h && FILETIMER=off $T acquire --scope x --timeout 1h && "
      "FILETIMER=off $T release --scope kept ";
  CHECK(run_shell(server, released + until_read + "exit 5") == exited(5));
  CHECK(run_shell(server, "$T acquire --scope forgotten --timeout 1h " + until_read + "exit 6") ==
        exited(6));
  const Record left = server.wait_for("left_open");
  CHECK(left.text("scope") == "forgotten");
  server.barrier();
  CHECK(count(server.records(), "left_open") == 1);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire while the server drains exits 6 and says why, but renews an open scope") {
  Server server;
  const Worker worker("block");
  const auto other = client_worker(server.dir());
  REQUIRE(other->ask("open kept 3600000") == "yes");  // on its page
  CHECK(run_acquire(server, "kept", worker.pid()).status == exited(0));
  CHECK(run_client(server, {"shutdown", "--mode", "if_idle"}).status ==
        exited(6));  // the server has read the request
  CHECK(run_client(server, {"drain"}).status == exited(0));
  const Finished refused = run_acquire(server, "new", worker.pid());
  CHECK(refused.status == exited(6));
  CHECK(refused.err == "timer_client: 'new' is not watched: the timer server in '" + server.dir() +
                           "' is draining: it watches no new scopes\n");
  CHECK(run_acquire(server, "kept", other->pid()).status == exited(6));
  CHECK(run_acquire(server, "kept", worker.pid(), "2h").status == exited(0));
  CHECK(run_client(server, {"drain", "--off"}).status == exited(0));
  CHECK(run_acquire(server, "new", worker.pid()).status == exited(0));
  server.barrier();
  const Finished list = run_client(server, {"list"});
  CHECK(list.status == exited(0));
  CHECK(contains(list.out, "2 h"));
  CHECK(contains(list.out, "new"));
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("a worker that renews its scope after the verdict is spared, also in a drain") {
  const TempFolder temp;
  Server server(temp, kills_wait_for_go(temp));
  const HungWorker worker(server);
  server.wait_for("expired", worker.pid());
  CHECK(run_client(server, {"drain"}).status == exited(0));
  CHECK(run_acquire(server, "s", worker.pid()).status == exited(0));
  temp.write("go", "");
  CHECK(server.wait_for("killed", worker.pid()).text("verdict") == "spared");
  CHECK(worker.is_alive());
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("acquire exits 6 while the server shuts down, and 4 when the server was killed then") {
  Server server;
  const WorkerInScope worker(server, "load");
  const std::string said = server.temp().path("said");
  Child waits({.argv = {client_path(), "shutdown", "--dir", server.dir()}, .err = said});
  REQUIRE(wait_until([&] { return !read_file(said).empty(); }));
  check_failure(run_acquire(server, "new", worker.pid()), 6,
                "' is shutting down: it watches no new scopes\n");
  server.kill();
  CHECK(run_acquire(server, "new", worker.pid()).status == exited(4));
}

TEST_CASE("acquire on a bare pipe exits 0 while the server drains") {
  const TempFolder temp;
  Server server(temp, {"--fifo", temp.path("pipe")});
  const Worker worker("block");
  CHECK(run_client(server, {"drain"}).status == exited(0));
  CHECK(run(client_path(),
            {"acquire", "--scope", "new", "--timeout", "1h", "--pid", std::to_string(worker.pid()),
             "--fifo", temp.path("pipe")},
            {{"XDG_RUNTIME_DIR", temp.path("none")}})
            .status == exited(0));
  server.wait_for("rejected");
}

TEST_CASE("run in a drain runs COMMAND unwatched, says so, and exits as COMMAND does") {
  Server server;
  CHECK(run_client(server, {"drain"}).status == exited(0));
  const Finished ran =
      run_client(server, {"run", "--timeout", "20ms", "--", "sh", "-c", "sleep 0.2; exit 7"});
  CHECK(ran.status == exited(7));
  CHECK(ran.err == "timer_client: COMMAND runs unwatched: the timer server in '" + server.dir() +
                       "' is draining: it watches no new scopes\n");
  const Finished off = run(client_path(), {"run", "--", "sh", "-c", "exit 7"},
                           {{"FILETIMER_DIR", server.dir()}, {"FILETIMER", "off"}});
  CHECK(off.status == exited(7));
  CHECK(off.err.empty());
  CHECK(run_client(server, {"drain", "--off"}).status == exited(0));
  CHECK(run_client(server, {"run", "--timeout", "20ms", "--", "sleep", "100"}).status ==
        exited(124));
  server.barrier();
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("run asks for the rest of its timeout, though the clock was set before a server came") {
  const TempFolder temp;
  Environment environment = with_own_clocks(temp).environment;
  environment["CLOCK_STEP"] = temp.path("step");
  environment["FILETIMER_MISSING"] = "ignore";
  write_file(temp.path("step"), "-500000000");  // longer than since the boot
  Child program({.argv = {client_path(), "run", "--dir", temp.path("run"), "--timeout", "1h", "--",
                          "sleep", "60"},
                 .environment = environment,
                 .err = temp.path("err")});
  REQUIRE(wait_until([&] { return contains(read_file(temp.path("err")), "is watched once"); }));
  REQUIRE(::unlink(temp.path("step").c_str()) == 0);
  Server server(temp);
  CHECK(wait_until([&] { return contains(run_client(server, {"list"}).out, "sleep"); }));
  CHECK(count(server.records(), "expired") == 0);
  program.signal(SIGTERM);
  CHECK(program.status() == exited(128 + SIGTERM));
}

TEST_CASE("a client that finds no server asks the only one around a COMMAND, and names several") {
  const TempFolder temp;
  const filetimer::testing::Environment places{{"XDG_RUNTIME_DIR", temp.path()},
                                               {"XDG_STATE_HOME", temp.path("state")}};
  const auto check = [&](int code, const std::string& more) {
    for (const char* question : {"ping", "status"}) {
      CAPTURE(question);
      const Finished asked = run(client_path(), {question}, places);
      CAPTURE(asked.err);
      CHECK(asked.status == exited(code));
      CHECK(contains(asked.err, "no timer server"));
      CHECK(asked.err.ends_with(more + "\n"));
      CHECK(std::count(asked.err.begin(), asked.err.end(), '\n') == 1);
    }
  };
  {
    const std::string pid_file = temp.path("pid");
    const std::string command = "echo $$ > " + pid_file + "; exec sleep 1000";
    Server server(
        temp, {.environment = places, .with_dir = false, .command = {"/bin/sh", "-c", command}});
    const HeldPid left_behind = pid_in(pid_file);
    check(0, fmt::format(": asking the one in '{}'", server.dir()));
    // What changes a server goes to the default one or to the one that is named.
    const std::string none = temp.path("none");
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"drain"},
             {"shutdown"},
             {"rendezvous", "--rank", "0", "--world", "1", "--timeout", "1s"},
             {"ping", "--dir", none},
             {"ping", "--fifo", none + "/requests"}}) {
      CAPTURE(words[0]);
      CHECK(run(client_path(), words, places).status == exited(4));
    }
    filetimer::testing::Environment named = places;
    named["FILETIMER_DIR"] = none;
    CHECK(run(client_path(), {"ping"}, named).status == exited(4));
    named["FILETIMER_DIR"] = temp.path("filetimer");  // the default one
    CHECK(run(client_path(), {"ping"}, named).status == exited(4));
    CHECK(run(client_path(), {"ping", "--fifo", server.fifo()}, named).status == exited(0));
    Server other(temp,
                 {.environment = places, .with_dir = false, .command = {"/bin/sleep", "1000"}});
    check(4, fmt::format("; one is running in '{}', and 1 more beside it: name it with --dir or "
                         "$FILETIMER_DIR",
                         std::min(server.dir(), other.dir())));
    CHECK(contains(run(client_path(), {"list"}, places).err, "; one is running in '"));
    CHECK(other.stop() != exited(0));
    const Finished suggested = run(client_path(), {"suggest"}, places);
    CHECK(contains(suggested.err, "; one is running in '" + server.dir() + "'"));
    {
      Server ours(temp, {.environment = places, .with_dir = false});
      const Finished asked = run(client_path(), {"ping"}, places);
      CHECK(asked.out.starts_with(fmt::format("pid {} answered", ours.pid())));
      CHECK(asked.err.empty());
      CHECK(ours.stop() == exited(0));
    }
    server.kill();  // its directory stays
  }
  const Finished asked = run(client_path(), {"list"}, places);
  CHECK(asked.status == exited(4));
  CHECK_FALSE(contains(asked.err, "one is running"));
}

TEST_CASE("messages that go to the journal have its levels in front, and no others do") {
  const TempFolder temp;
  const filetimer::UniqueFd stream(
      ::open(temp.path("stream").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const auto file = filetimer::identity_of(stream.get());
  const Environment environment{{"JOURNAL_STREAM", fmt::format("{}:{}", file.device, file.inode)}};
  Worker worker("block");
  const auto spare_worker_of = [&](Server& server) {
    server.send("no request\n" + acquire_past(worker.pid(), "step", 0));
    (void)server.wait_for("killed", worker.pid());
    return server.stop();
  };
  Server server(
      temp, {.args = {"--log-level", "debug"}, .environment = environment, .err_fd = stream.get()});
  CHECK(spare_worker_of(server) == exited(0));
  const std::string logged = read_file(temp.path("stream"));
  CAPTURE(logged);
  CHECK(contains(logged, fmt::format("<7>watching pid {}", worker.pid())));
  CHECK(contains(logged, fmt::format("<6>pid {} (test_worker) expired", worker.pid())));
  CHECK(contains(logged, "<4>1 request rejected"));
  CHECK_FALSE(contains(logged, "timer_server: "));
  Server elsewhere(temp, {.environment = environment, .folder = "elsewhere"});
  CHECK(spare_worker_of(elsewhere) == exited(0));
  CHECK(contains(elsewhere.err(), "timer_server: info: pid "));
}

TEST_CASE("--log-level wins over the variable, and an unknown level is bad usage") {
  const Server server;
  const auto run = [&](const std::vector<std::string>& words, const char* variable) {
    return filetimer::testing::run(
        client_path(), words, {{"FILETIMER_LOG_LEVEL", variable}, {"FILETIMER_DIR", server.dir()}});
  };
  const std::string expected = "'loud': expected one of error, warning, info, debug\n";
  const Finished wrong = run({"ping"}, "loud");
  CHECK(wrong.status == exited(2));
  CHECK(wrong.err == "timer_client: ping: $FILETIMER_LOG_LEVEL: " + expected);
  CHECK(run({"ping", "--log-level", "loud"}, "").err ==
        "timer_client: ping: --log-level: " + expected);
  CHECK(run({"run", "--log-level", "loud", "--", "true"}, "").status == exited(125));
  CHECK(run({"run", "--", "true"}, "loud").status == exited(125));
  CHECK(run({"ping"}, "error").err.empty());
  CHECK(run({"ping", "--log-level", "error"}, "loud").status == exited(0));
  const Finished verbose = run({"ping", "--log-level", "debug", "--rpc-timeout", "90s"}, "error");
  CHECK(verbose.status == exited(0));
  CHECK(contains(verbose.err,
                 "debug: request 'ping' to '" + server.fifo() + "': waiting 90s for answers\n"));
  CHECK(contains(verbose.err, "debug: request 'ping': done after "));
  CHECK(contains(run({"run", "--log-level", "info", "--", "true"}, "").err,
                 "info: connected to the timer server at '" + server.fifo() + "'"));
}
