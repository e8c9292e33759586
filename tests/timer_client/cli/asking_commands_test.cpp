// The subcommands with control requests: what they send, what they print, and their exit codes.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/variable.hpp"
#include "tests/timer_client/answering_server.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/commands/commands.hpp"

namespace filetimer::cli {
namespace {

using testing::AnsweringServer;
using Answers = testing::AnsweringServer::Answers;

Ran ran(const std::string& dir, const std::string& command) {
  std::vector<std::string> words = split_words(command);
  words.insert(words.end(), {"--dir", dir});
  return run_command(words);
}

}  // namespace

TEST_CASE("ping prints the pid that answered, and how fast") {
  AnsweringServer server(R"({"answer":"done","server_pid":4711,"server_version":"0.3.0"})");
  const Ran text = ran(server.dir(), "ping");
  CHECK(text.code == 0);
  CHECK(text.errors.empty());
  CHECK(text.output.starts_with("pid 4711 answered in "));
  CHECK(text.output.ends_with(" ms\n"));
  const Ran json = ran(server.dir(), "ping --json --rpc-timeout 1500ms");
  CHECK(json.output == R"({"answer":"done","server_pid":4711,"server_version":"0.3.0"})"
                       "\n");
  REQUIRE(server.asked().size() == 2);
  CHECK(server.asked()[0].request == "ping");
  CHECK(server.asked()[0].wait_s == 60);
  CHECK(server.asked()[1].wait_s == 1.5);
}

TEST_CASE("shutdown sends the mode and the timeout of its options") {
  const auto check = [](const std::string& options, const char* graceful, bool force,
                        double wait_s) {
    CAPTURE(options);
    AnsweringServer server(R"({"answer":"done","open_scope_count":0})");
    check_ran(ran(server.dir(), "shutdown" + options), 0, "");
    CHECK(server.asked() ==
          std::vector<wire::Question>{
              {.request = "shutdown", .wait_s = wait_s, .graceful = graceful, .force = force}});
  };
  check("", "scopes", false, 30);
  check(" --mode graceful", "scopes", false, 30);
  check(" --mode graceful_or_now --timeout 10m", "scopes", true, 600);
  check(" --mode workers --timeout inf", "workers", false, INFINITY);
  check(" --mode workers_or_now", "workers", true, 30);
  check(" --mode if_idle", "", false, 30);
  check(" --mode=now", "", true, 30);
  CHECK(run_command({"shutdown", "--mode=soon"}).errors ==
        "--mode: 'soon': expected one of graceful, graceful_or_now, workers, workers_or_now, "
        "if_idle, now");
}

// What answers look like: golden/answers.logs.
TEST_CASE("a rendezvous sends its options, and its name is shown as one line") {
  AnsweringServer server(R"({"answer":"done","round":7,"joined":[]})");
  check_ran(ran(server.dir(), "rendezvous --rank 1 --world 2 --timeout 5s --name a\nb"), 0,
            "rendezvous 'a\\nb', round 7: all 2 ranks have joined\n");
  CHECK(server.asked() ==
        std::vector<wire::Question>{
            {.request = "rendezvous", .wait_s = 5, .name = "a\nb", .rank = 1, .world = 2}});
}

TEST_CASE("dump refuses two choices of workers, and is bold on a terminal") {
  CHECK(run_command({"dump", "--rank", "1", "--pid", "2"}).errors ==
        "expected one of --rank and --pid");
  const OnTerminal terminal;
  AnsweringServer server(R"({"answer":"done","workers":[{"pid":12,"comm":"t"}]})");
  CHECK(ran(server.dir(), "dump").output == "^[1mpid 12 (t)^[0m\n  scopes  none\n");
}

TEST_CASE("without a server or an answer a request ends with one line and an exit code") {
  const std::string rendezvous = "rendezvous --rank 0 --world 1 --timeout 1s";
  SUBCASE("none") {
    const TempFolder folder;
    for (const char* command : {"ping", "status", "drain", "shutdown"}) {
      check_ran(ran(folder.path(), command), kExitNoServer, "",
                "timer_client: no timer server at '" + folder.path("requests") +
                    "': there is no such pipe\n");
    }
    CHECK(ran(folder.path(), rendezvous).code == kExitNoServer);
  }
  SUBCASE("one that is silent") {
    AnsweringServer server(
        [](const wire::Question&, Answers& answers) { answers.wait_until_hung_up(); });
    const Ran silent = ran(server.dir(), "status --rpc-timeout 20ms");
    CHECK(silent.code == kExitTimedOut);
    CHECK(contains(silent.errors, "no answer to 'status'"));
    CHECK(ran(server.dir(), rendezvous + " --rpc-timeout 20ms").code == kExitTimedOut);
    CHECK(server.asked().back().name == "default");
  }
  SUBCASE("one that ends") {
    AnsweringServer server([](const wire::Question&, Answers&) {});
    CHECK(ran(server.dir(), "drain").code == kExitNoServer);
  }
  SUBCASE("one whose answer can't be read") {
    AnsweringServer server("?");
    CHECK(ran(server.dir(), "drain").code == kExitFailed);
    CHECK(ran(server.dir(), rendezvous).code == kExitFailed);
  }
}

TEST_CASE("--fifo without --dir must be the pipe of a runtime directory") {
  const TempFolder folder;
  AnsweringServer server(R"({"answer":"done","server_pid":1})", folder.path());
  // The server of the default directory.
  const TempFolder runtime;
  const testing::Variable runtime_dir("XDG_RUNTIME_DIR", runtime.path().c_str());
  REQUIRE(::mkdir(runtime.path("filetimer").c_str(), 0700) == 0);
  AnsweringServer users(R"({"answer":"done","server_pid":1})", runtime.path("filetimer"));
  const std::string linked = folder.path("linked");
  REQUIRE(::link(users.pipe().c_str(), linked.c_str()) == 0);
  CHECK(run_command({"ping", "--fifo", linked}).code == 0);
  const std::string pipe = folder.path("elsewhere");
  REQUIRE(::link(server.pipe().c_str(), pipe.c_str()) == 0);
  check_fails({"ping", "--fifo", pipe}, kExitUsage,
              "the runtime directory of '" + pipe +
                  "' is not known, and answers come through it: expected --dir DIR");
  const std::string unread = folder.path("unread");
  REQUIRE(::mkfifo(unread.c_str(), 0600) == 0);
  for (const auto& [path, why] : {std::pair{folder.path("none"), "there is no such pipe"},
                                  std::pair{unread, "no process reads it"}}) {
    check_fails({"ping", "--fifo", path}, kExitNoServer,
                "no timer server at '" + path + "': " + why);
  }
  ::setenv("FILETIMER_DIR", folder.path().c_str(), 1);
  CHECK(run_command({"ping", "--fifo", pipe}).code == 0);
  ::unsetenv("FILETIMER_DIR");
  CHECK(run_command({"ping", "--fifo", pipe, "--dir", folder.path()}).code == 0);
  const testing::Variable timeout("FILETIMER_RPC_TIMEOUT", "soon");
  const Ran soon = ran(folder.path(), "ping");
  CHECK(soon.code == kExitUsage);
  CHECK(soon.errors.starts_with("timer_client: $FILETIMER_RPC_TIMEOUT: 'soon' is not a duration"));
}

}  // namespace filetimer::cli
