// The version-1 transport on real pipes.
// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe/pipe_transport.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/timer_client/client_fixture.hpp"
#include "common/limits.hpp"
#include "common/scope_name.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using Sent = Transport::Sent;

namespace {

TimerRequest some_request() {
  TimerRequest request;
  request.pid = 4711;
  request.tid = 4712;
  request.timer_id = "step#2";
  request.scope = "step";
  request.timeout = 1500ms;
  request.expiration_time = 1795223987.41;
  return request;
}

std::string why_not(const std::string& path) {
  std::string why;
  CHECK_FALSE(PipeTransport(path).server_is_there(why));
  return why;
}

}  // namespace

TEST_CASE("an acquire carries what the reference reads and our own keys") {
  CHECK(version_1_line(some_request()) ==
        "{\"version\": 1, \"pid\": 4711, \"scope_id\": \"step#2\", \"expiration_time\": "
        "1795223987.41, \"signal\": 9, \"x_timeout_s\": 1.5, \"x_tid\": 4712, \"x_scope\": "
        "\"step\"}\n");
}

TEST_CASE("a release carries what the reference reads and no more") {
  TimerRequest request = some_request();
  request.release = true;
  CHECK(version_1_line(request) ==
        "{\"version\": 1, \"pid\": 4711, \"scope_id\": \"step#2\", \"expiration_time\": -1, "
        "\"signal\": 0}\n");
}

TEST_CASE("the grace is told only where it was set, and never is a negative one") {
  TimerRequest request = some_request();
  CHECK(version_1_line(request).find("x_grace_s") == std::string::npos);
  request.grace = 0s;
  CHECK(version_1_line(request).find("\"x_grace_s\": 0,") != std::string::npos);
  request.grace = std::chrono::nanoseconds::max();
  CHECK(version_1_line(request).find("\"x_grace_s\": -1,") != std::string::npos);
}

TEST_CASE("a soft deadline is told where one was set, but not with a release") {
  TimerRequest request = some_request();
  CHECK(version_1_line(request).find("x_soft_s") == std::string::npos);
  request.warn_after = 250ms;
  CHECK(version_1_line(request).find("\"x_soft_s\": 0.25,") != std::string::npos);
  request.release = true;
  CHECK(version_1_line(request).find("x_soft_s") == std::string::npos);
}

TEST_CASE("the longest and worst name fits one atomic write") {
  for (const char byte : {'\x01', '\xff', '"', 'x'}) {
    TimerRequest request = some_request();
    request.scope = bounded_scope_name(std::string(10'000, byte));
    request.timer_id = request.scope + "#1024";
    CHECK(version_1_line(request).size() <= kMaxAtomicWrite);
  }
}

TEST_CASE("a request arrives whole, and the pipe is not held open") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  PipeTransport transport(pipe.path());
  REQUIRE(transport.send(some_request()) == Sent::kYes);
  const auto line = pipe.next();
  CHECK(line.pid == 4711);
  CHECK(line.scope_id == "step#2");
  CHECK(line.x_scope == "step");
  // End of file, not EAGAIN: no writer is left.
  const UniqueFd reader(::open(pipe.path().c_str(), O_RDONLY | O_NONBLOCK));
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 0);
}

TEST_CASE("a server that is missing is told from a pipe that is full") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  PipeTransport transport(pipe.path());
  const auto bytes = pipe.fill();
  CHECK(transport.send(some_request()) == Sent::kTryLater);
  pipe.drain(bytes);
  CHECK(transport.send(some_request()) == Sent::kYes);
  pipe.close();
  CHECK(transport.send(some_request()) == Sent::kNoServer);
  CHECK(PipeTransport(folder.path("nothing")).send(some_request()) == Sent::kNoServer);
}

TEST_CASE("why there is no server is one clear reason") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  std::string why;
  CHECK(PipeTransport(pipe.path()).server_is_there(why));
  pipe.close();
  CHECK(why_not(pipe.path()) == "nobody reads it");
  CHECK(why_not(folder.path("nothing")) == "there is no such pipe");
  CHECK(why_not(folder.path()) == "what is there is not a pipe");
  CHECK(why_not("/dev/null") == "what is there is not a pipe");
}

TEST_CASE("a pipe without permission has no server for us") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  REQUIRE(::chmod(pipe.path().c_str(), 0) == 0);
  if (::geteuid() == 0) {
    return;  // root may write to anything
  }
  CHECK(why_not(pipe.path()) == "no permission to write to it");
  CHECK(PipeTransport(pipe.path()).send(some_request()) == Sent::kNoServer);
}

TEST_CASE("a regular file at the path is never written to") {
  const testing::TempFolder folder;
  const std::string path = folder.path("requests");
  std::ofstream(path) << "precious";
  CHECK(PipeTransport(path).send(some_request()) == Sent::kNoServer);
  CHECK(why_not(path) == "what is there is not a pipe");
  CHECK(std::filesystem::file_size(path) == 8);
}

TEST_CASE("a reader that goes between open and write raises no SIGPIPE") {
  // SIGPIPE has its default action here: were it raised, this process would be gone. The race is
  // run often, with a reader that comes and goes.
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("requests"));
  PipeTransport transport(pipe.path());
  std::atomic<bool> done = false;
  std::thread flapping([&] {
    while (!done) {
      pipe.close();
      pipe.open();
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    transport.send(some_request());
  }
  done = true;
  flapping.join();
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == 0);
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  CHECK(::sigismember(&mask, SIGPIPE) == 0);
}
