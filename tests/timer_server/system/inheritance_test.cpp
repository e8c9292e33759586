// Which settings of its parent a child inherits.
// SPDX-License-Identifier: MIT
#include "timer_server/system/inheritance.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>

using namespace filetimer;

namespace {

// Returns the output of a program.
std::string output_of(std::vector<std::string> words, const Inheritance& inheritance,
                      std::vector<std::string> environment = {"PATH=/usr/bin:/bin"}) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  ChildStart start;
  start.words = std::move(words);
  start.environment = std::move(environment);
  start.output = writing.get();
  auto child = start_child(start, inheritance);
  REQUIRE(child);
  writing.reset();
  std::string said;
  std::array<char, 4096> bytes;
  for (ssize_t got = 0; (got = ::read(reading.get(), bytes.data(), bytes.size())) > 0;) {
    said.append(bytes.data(), static_cast<std::size_t>(got));
  }
  CHECK(child->wait().exit_status == 0);
  return said;
}

std::vector<std::string> shell(const std::string& command) {
  return {"/bin/sh", "-c", command};
}

}  // namespace

TEST_CASE("A child has the oom score, the limits and the signal mask that it is given") {
  Inheritance inheritance = Inheritance::of_this_process();
  inheritance.oom_score_adj = "731";
  inheritance.files.rlim_cur = 77;
  ::sigemptyset(&inheritance.mask);
  ::sigaddset(&inheritance.mask, SIGUSR2);
  CHECK(output_of(shell("cat /proc/self/oom_score_adj; ulimit -n"), inheritance) == "731\n77\n");
  CHECK(output_of({"grep", "SigBlk", "/proc/self/status"}, inheritance) ==
        "SigBlk:\t0000000000000800\n");
}

TEST_CASE("A child keeps an oom score that the parent did not change") {
  const Inheritance inheritance = Inheritance::of_this_process();
  CHECK(output_of(shell("cmp /proc/self/oom_score_adj /proc/$PPID/oom_score_adj && echo same"),
                  inheritance) == "same\n");
}

TEST_CASE("A child that cannot be executed exits with 127 and reports the errno") {
  ChildStart start;
  start.words = {"/no/such/program"};
  UniqueFd failure;
  auto child = start_child(start, Inheritance::of_this_process(), &failure);
  REQUIRE(child);
  int error = 0;
  REQUIRE(::read(failure.get(), &error, sizeof error) == sizeof error);
  CHECK(error == ENOENT);
  CHECK(child->wait().exit_status == 127);
}

TEST_CASE("A variable is set once, replaced and unset") {
  std::vector<std::string> environment{"AB=1", "A=1", "A=2"};
  set_variable(environment, "A", "3=4");
  CHECK(environment == std::vector<std::string>{"AB=1", "A=3=4"});
  unset_variable(environment, "A");
  CHECK(environment == std::vector<std::string>{"AB=1"});
}

TEST_CASE(
    "Children have the variables of the directory and the pipe, and none of the server's own") {
  ::setenv("NOTIFY_SOCKET", "/n", 1);
  ::setenv("FILETIMER_DIR", "/old", 1);
  const auto environment = environment_for_children("/run/f", "/run/f/requests");
  CHECK(output_of(shell("echo $FILETIMER_DIR $TORCHELASTIC_TIMER_FILE ${NOTIFY_SOCKET-none}"),
                  Inheritance::of_this_process(), environment) == "/run/f /run/f/requests none\n");
}
