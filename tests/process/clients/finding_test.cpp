// Clients of a server whose log is elsewhere, or whose directory is inside the default one.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

bool is_link_to(const std::string& link, const std::string& target) {
  std::error_code none;
  return fs::read_symlink(link, none) == target;
}

}  // namespace

TEST_CASE("a directory that was removed and made again has a link to the log again") {
  const TempFolder temp;
  const std::string log = temp.path("log.jsonl");
  Server server(temp, {"--log", log, "--max-interval", "100ms"});
  const std::string link = server.dir() + "/log_link";
  REQUIRE(is_link_to(link, log));
  fs::rename(server.dir(),
             temp.path("removed"));  // in one step, because a sweep may come at any moment
  fs::remove_all(temp.path("removed"));
  CHECK(wait_until([&] { return is_link_to(link, log); }));
}

TEST_CASE("no link is made to a log whose path is another file in each process") {
  const TempFolder temp;
  Server server(temp, {"--log", "/dev/stderr"});
  CHECK_FALSE(exists(server.dir() + "/log_link"));
}

TEST_CASE("a client that finds no server asks the only one around a COMMAND, and names several") {
  const TempFolder temp;
  const filetimer::testing::Environment places{{"XDG_RUNTIME_DIR", temp.path()},
                                               {"XDG_STATE_HOME", temp.path("state")}};
  const auto check = [&](int code, const std::string& more) {
    for (const char* question : {"ping", "status"}) {
      CAPTURE(question);
      const Finished asked = run(temp, client_path(), {question}, places);
      CAPTURE(asked.err);
      CHECK(asked.status == exited(code));
      CHECK(contains(asked.err, "no timer server"));
      CHECK(asked.err.ends_with(more + "\n"));
      CHECK(std::count(asked.err.begin(), asked.err.end(), '\n') == 1);
    }
  };
  {
    const std::string pid_file = temp.path("pid");
    const std::string command =
        fmt::format("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid_file);
    Server server(
        temp, {.environment = places, .with_dir = false, .command = {"/bin/sh", "-c", command}});
    REQUIRE(wait_until([&] { return exists(pid_file); }));
    const HeldPid left_behind(std::stoi(read_file(pid_file)));
    check(0, fmt::format(": asking the one in '{}'", server.dir()));
    Server other(temp,
                 {.environment = places, .with_dir = false, .command = {"/bin/sleep", "1000"}});
    check(4, fmt::format("; one is running in '{}', and 1 more beside it: name it with --dir or "
                         "$FILETIMER_DIR",
                         std::min(server.dir(), other.dir())));
    CHECK(other.stop() != exited(0));
    const Finished suggested = run(temp, client_path(), {"suggest"}, places);
    CHECK(contains(suggested.err, "; one is running in '" + server.dir() + "'"));
    server.process().signal(SIGKILL);  // its directory stays
    CHECK(server.process().status() == killed_by(SIGKILL));
  }
  const Finished asked = run(temp, client_path(), {"list"}, places);
  CHECK(asked.status == exited(4));
  CHECK_FALSE(contains(asked.err, "one is running"));
}
