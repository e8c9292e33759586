// digits_trainer as users run it: alone, under timer_server, with a rank that dies or hangs.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/process/harness.hpp"

namespace filetimer::testing {
namespace {

std::string trainer_path() {
  return std::string{FILETIMER_BIN_DIR} + "/digits_trainer";
}

Launch trainer(const TempFolder& temp, std::vector<std::string> args) {
  args.insert(args.begin(), trainer_path());
  // A runtime directory without a server, so that the user's own server is not found.
  return {.argv = std::move(args),
          .environment = {{"XDG_RUNTIME_DIR", temp.path()}},
          .out = temp.path("out"),
          .err = temp.path("err")};
}

Finished run_trainer(const TempFolder& temp, const Launch& launch) {
  constexpr auto kTraining = 4 * kBound;  // some seconds of a CPU for each rank
  Child child(launch);
  REQUIRE(child.ends_within(kTraining));
  const ExitStatus status = child.status();
  return {status, read_file(temp.path("out")), read_file(temp.path("err"))};
}

// Under this server, with more variables.
Finished run_trainer(const Server& server, std::vector<std::string> args,
                     Environment environment = {}) {
  environment["FILETIMER_DIR"] = server.dir();
  Launch launch = trainer(server.temp(), std::move(args));
  launch.environment = std::move(environment);
  return run_trainer(server.temp(), launch);
}

// Returns the number after `before` in `text`; 0 if there is none.
double number_after(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  return at == std::string::npos ? 0 : std::atof(text.c_str() + at + before.size());
}

pid_t pid_of_hung_rank(const TempFolder& temp) {
  REQUIRE(wait_until([&] { return contains(read_file(temp.path("err")), ") hangs in forward"); }));
  return static_cast<pid_t>(number_after(read_file(temp.path("err")), "(pid "));
}

TEST_CASE("Without a server the trainer prints a message and learns") {
  const TempFolder temp;
  const Finished finished = run_trainer(temp, trainer(temp, {"--ranks", "2"}));
  CHECK(finished.status == exited(0));
  CHECK(number_after(finished.out, "accuracy ") > 0.9);
  CHECK(contains(finished.err, "running unwatched"));
  CHECK(contains(run_trainer(temp, trainer(temp, {"--data", "/dev/null"})).err, "least 80 rows"));
}

TEST_CASE("With a server the trainer learns and nothing expires") {
  const Server server;
  const Finished finished = run_trainer(server, {"--ranks", "2"});
  CHECK(finished.status == exited(0));
  CHECK(number_after(finished.out, "accuracy ") > 0.9);
  CHECK(finished.err == "");
  CHECK(count(server.records(), "expired") == 0);
  CHECK(count(server.records(), "rejected") == 0);
}

TEST_CASE("The rank that hangs is killed, and the ranks that wait for it are not") {
  const Server server;
  const Finished finished =
      run_trainer(server, {"--ranks", "4", "--timeout", "2s", "--hang", "2:20"});
  CHECK(finished.status == exited(1));
  CHECK(contains(finished.err, "was killed by signal 9"));

  const auto hung = static_cast<pid_t>(number_after(finished.err, "(pid "));
  const Record killed = server.wait_for("killed", hung);
  CHECK(killed.text("verdict") == "dead");
  const Records records = server.records();
  CHECK(scopes_of(records, "expired", hung) == std::vector<std::string>{"forward"});
  CHECK(count(records, "expired") == 1);
  CHECK(server.wait_for("expired", hung).integer("rank") == 2);
}

TEST_CASE("With the file that suggest writes, a hang is found in a tenth of the guessed time") {
  const Server server({"--evidence", "none"});
  CHECK(run_trainer(server, {"--ranks", "4", "--timeout", "5m"}).status == exited(0));
  REQUIRE(wait_until([&] { return count(server.records(), "worker_ended") == 4; }));

  const Finished suggested = run_client(server, {"suggest", "--format", "toml", "--floor", "3s"});
  REQUIRE(suggested.status == exited(0));
  server.temp().write("timeouts.toml", suggested.out);
  const Finished finished =
      run_trainer(server, {"--ranks", "4", "--timeout", "5m", "--hang", "2:20"},
                  {{"FILETIMER_TIMEOUTS", server.temp().path("timeouts.toml")}});
  CHECK(finished.status == exited(1));
  const auto hung = static_cast<pid_t>(number_after(finished.err, "(pid "));
  const Record expired = server.wait_for("expired", hung);
  CHECK(expired.text("scope") == "forward");
  CHECK(expired.number("code_timeout_s") == 300);
  CHECK(expired.number("timeout_s") >= 3);
  CHECK(expired.number("elapsed_s") <= 30);
  CHECK(count(server.records(), "expired") == 1);
}

TEST_CASE("When a rank dies the others notice, and the training has failed") {
  const TempFolder temp;
  Child child(trainer(temp, {"--ranks", "3", "--hang", "1:5"}));
  ::kill(pid_of_hung_rank(temp), SIGTERM);
  CHECK(child.status() == exited(1));
  const std::string err = read_file(temp.path("err"));
  CHECK(contains(err, "was killed by signal 15"));
  CHECK(contains(err, "rank 0: rank 1 is gone: its pipe was closed, in step 5"));
  CHECK(contains(err, "rank 2: rank 0 is gone"));
  CHECK(contains(err, "the training failed"));
}

TEST_CASE("When its launcher is killed no rank is left behind, not even one that hangs") {
  const TempFolder temp;
  Child child(trainer(temp, {"--ranks", "2", "--hang", "1:1"}));
  const HeldPid hung(pid_of_hung_rank(temp));
  child.signal(SIGKILL);
  CHECK(child.status() == killed_by(SIGKILL));
  CHECK(hung.ends_within(kBound));
}

}  // namespace
}  // namespace filetimer::testing
