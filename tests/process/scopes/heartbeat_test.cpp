// A heartbeat of our C++ client with a real server, on a page and on the pipe: beats keep the
// worker alive, and it is killed after the first missing one.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <csignal>
#include <sstream>

#include "tests/process/harness.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

struct Heartbeat {
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds first_timeout;
  std::chrono::milliseconds beats_for;
};

// The times before and after a call of the worker, by CLOCK_MONOTONIC.
struct Call {
  std::chrono::nanoseconds before{};
  std::chrono::nanoseconds after{};
};

struct Calls {
  Call opened;
  Call last;  // beat
};

Calls beat(Worker& worker, const Heartbeat& heartbeat) {
  const std::string answer =
      worker.ask(fmt::format("beat pump {} {} {}", heartbeat.timeout.count(),
                             heartbeat.first_timeout.count(), heartbeat.beats_for.count()));
  CAPTURE(answer);
  std::istringstream words(answer);
  std::int64_t times[4] = {};
  for (std::int64_t& time : times) {
    words >> time;
  }
  REQUIRE(!words.fail());
  using std::chrono::nanoseconds;
  return {{nanoseconds(times[0]), nanoseconds(times[1])},
          {nanoseconds(times[2]), nanoseconds(times[3])}};
}

// The deadline in the record is the one that the call has stored.
void check_deadline(const Record& expired, const Call& call, std::chrono::milliseconds timeout) {
  const std::chrono::nanoseconds deadline(expired.integer("deadline_mono_ns"));
  CHECK(deadline >= call.before + timeout);
  CHECK(deadline <= call.after + timeout);
  CHECK(expired.integer("mono_ns") >= deadline.count());
}

}  // namespace

TEST_CASE("beats keep a worker alive beyond its timeouts, and it is killed after a missed beat") {
  const TempFolder temp;
  Server server(temp);
  const Heartbeat heartbeat{1200ms, 1500ms, 3000ms};
  const auto worker = client_worker(server.dir());
  const auto [opened, last] = beat(*worker, heartbeat);
  CHECK(last.before > opened.after + heartbeat.first_timeout + heartbeat.timeout);
  CHECK(worker->status() == killed_by(SIGKILL));
  const Record expired = server.wait_for("expired", worker->pid());
  CHECK(expired.text("scope") == "pump");
  CHECK(expired.number("timeout_s") == doctest::Approx(1.2));
  // Less than a beat apart: the deadline is that of the last beat.
  check_deadline(expired, last, heartbeat.timeout);
  CHECK(count(server.records(), "expired") == 1);
  CHECK(server.wait_for("killed", worker->pid()).text("verdict") == "dead");
}

TEST_CASE("a worker that never beats is killed after the first timeout, and not before") {
  const TempFolder temp;
  Server server(temp);
  const Heartbeat heartbeat{100ms, 600ms, 0ms};
  const auto worker = client_worker(server.dir());
  const Call opened = beat(*worker, heartbeat).opened;
  CHECK(worker->status() == killed_by(SIGKILL));
  const Record expired = server.wait_for("expired", worker->pid());
  CHECK(expired.text("scope") == "pump");
  CHECK(expired.number("timeout_s") == doctest::Approx(0.6));
  check_deadline(expired, opened, heartbeat.first_timeout);
  CHECK(count(server.records(), "expired") == 1);
}
