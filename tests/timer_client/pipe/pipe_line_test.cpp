// Timers on the pipe.
// SPDX-License-Identifier: MIT
#include "timer_client/client/pipe/pipe_line.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "common/clock.hpp"
#include "common/text.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::contains;
using testing::PipeFolder;

namespace {

// Returns the line of an acquire with these options.
std::string acquire_line(const PipeTimerOptions& options) {
  return wire::format(acquire_request(1500ms, "step", options));
}

Sent acquire(const std::string& path, std::string_view name = "step") {
  return send_request(path, acquire_request(1h, name));
}
Sent release(const std::string& path, std::string_view name = "step") {
  return send_request(path, release_request(name));
}

}  // namespace

TEST_CASE("a line has the keys that PyTorch reads, and that of an acquire adds some more") {
  const double before = static_cast<double>(ClockReading::now().wall_ns) / 1e9;
  wire::Request request = acquire_request(1500ms, "step", {.pid = 4711});
  const double after = static_cast<double>(ClockReading::now().wall_ns) / 1e9;
  CHECK(request.expiration_time >= before + 1.5);
  CHECK(request.expiration_time <= after + 1.501);
  request.expiration_time = 1795223987.41;
  CHECK(wire::format(request) ==
        "{\"version\": 1, \"pid\": 4711, \"scope_id\": \"step\", \"expiration_time\": "
        "1795223987.41, \"signal\": 9, \"x_timeout_s\": 1.5}\n");
  const wire::Request own = acquire_request(std::chrono::nanoseconds::max(), "step", {});
  CHECK(own.pid == ::getpid());
  CHECK(own.x_tid == ::gettid());
  CHECK(std::isinf(own.expiration_time));
  CHECK(std::isinf(own.x_timeout_s.value_or(0)));
  CHECK(wire::format(release_request("step", 4711)) ==
        "{\"version\": 1, \"pid\": 4711, \"scope_id\": \"step\", \"expiration_time\": -1, "
        "\"signal\": 0}\n");
  CHECK(release_request("step", 0).pid == ::getpid());
}

TEST_CASE("a grace, a warning and a signal are on the line of an acquire if they are set") {
  CHECK_FALSE(contains(acquire_line({}), "x_grace_s"));
  CHECK_FALSE(contains(acquire_line({}), "x_soft_s"));
  CHECK(contains(acquire_line({.grace = 0s}), "\"x_grace_s\": 0,"));
  CHECK(contains(acquire_line({.grace = kForever}), "\"x_grace_s\": -1,"));
  CHECK(contains(acquire_line({.warn_after = 250ms}), "\"x_soft_s\": 0.25,"));
  CHECK(contains(acquire_line({.signal = 0}), "\"signal\": 0,"));
}

TEST_CASE_FIXTURE(PipeFolder, "a request arrives whole, and the pipe is not held open") {
  REQUIRE(send_request(pipe.path(), acquire_request(30s, "step", {.pid = 4711})) == Sent::kYes);
  const auto line = pipe.next();
  CHECK(line.pid == 4711);
  CHECK(line.scope_id == "step");
  CHECK(line.x_timeout_s == 30);
  for (const char byte : {'\x01', '\xff', '"', 'x'}) {
    const std::string name = bounded_scope_name(valid_utf8(std::string(10'000, byte)));
    for (const auto& request : {acquire_request(1h, name), release_request(name)}) {
      REQUIRE(send_request(pipe.path(), request) == Sent::kYes);
      CHECK(pipe.next().scope_id == name);
    }
  }
  // End of file, not EAGAIN: the pipe has no writer.
  const UniqueFd reader(::open(pipe.path().c_str(), O_RDONLY | O_NONBLOCK));
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 0);
}

TEST_CASE_FIXTURE(
    PipeFolder,
    "a full pipe is distinguished from a missing server, for which there is one clear reason") {
  CHECK(why_no_reader(pipe.path()).empty());
  const auto bytes = pipe.fill();
  CHECK(acquire(pipe.path()) == Sent::kBusy);
  pipe.drain(bytes);
  CHECK(acquire(pipe.path()) == Sent::kYes);
  pipe.close();
  write("file", "precious");
  for (const auto& [place, why] : {std::pair{pipe.path(), "no process reads it"},
                                   {path("nothing"), "there is no such pipe"},
                                   {"/dev/null/requests", "there is no such pipe"},
                                   {std::string(5000, 'x'), "File name too long"},
                                   {path(), "it is not a pipe"},
                                   {"/dev/null", "it is not a pipe"},
                                   {path("file"), "it is not a pipe"}}) {
    CHECK(why_no_reader(place) == why);
    CHECK(acquire(place) == Sent::kNoServer);
    CHECK(release(place) == Sent::kNoServer);
  }
  CHECK(testing::read_file(path("file")) == "precious");
}

TEST_CASE_FIXTURE(PipeFolder, "a pipe without permission counts as no server") {
  REQUIRE(::chmod(pipe.path().c_str(), 0) == 0);
  FILETIMER_SKIP_IF(::geteuid() == 0, "root may write to any pipe");
  CHECK(why_no_reader(pipe.path()) == "no permission to write to it");
  CHECK(release(pipe.path()) == Sent::kNoServer);
}

TEST_CASE_FIXTURE(PipeFolder,
                  "a reader that closes the pipe between open and write raises no SIGPIPE") {
  // SIGPIPE has its default action here, so it would end this process. The race is run many times,
  // with a reader that opens and closes the pipe.
  const sigset_t sigpipe = signal_set({SIGPIPE});
  bool was_pending = false;
  SUBCASE("none is pending") {}
  SUBCASE("one that the program has blocked is pending, and stays so") {
    ::pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
    ::pthread_kill(::pthread_self(), SIGPIPE);
    was_pending = true;
  }
  testing::write_to_flapping(pipe, [&] { acquire(pipe.path()); });
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == (was_pending ? 1 : 0));
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  CHECK(::sigismember(&mask, SIGPIPE) == (was_pending ? 1 : 0));
  const timespec at_once{};
  ::sigtimedwait(&sigpipe, nullptr, &at_once);
  ::pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
}
