// The wall clock is stepped while the server runs. Known deadlines do not move.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// A server whose wall clock a test can step.
class SteppedServer {
 public:
  explicit SteppedServer(const TempFolder& temp)
      : file_(temp.path("step")),
        server(temp, {.environment = {{"LD_PRELOAD", clock_step_path()},
                                      {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                                      {"CLOCK_STEP", file_}}}) {}
  void step(std::chrono::seconds by) const {
    write_file(file_ + ".new", std::to_string(by.count()));
    REQUIRE(::rename((file_ + ".new").c_str(), file_.c_str()) == 0);
  }
  // Returns the server's wall clock, to the minute.
  [[nodiscard]] std::string minute_of_last_record() const {
    return server.records().back().text("time").substr(0, 16);
  }

 private:
  std::string file_;

 public:
  Server server;
};

std::string minute_from_now(std::chrono::seconds by) {
  const std::time_t then =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + by);
  std::tm utc{};
  ::gmtime_r(&then, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min);
}

}  // namespace

TEST_CASE("a wall clock that steps an hour forward expires no scope") {
  const TempFolder temp;
  SteppedServer stepped(temp);
  Server& server = stepped.server;
  Worker worker("block");
  server.send(acquire(worker.pid(), "a minute", 60s));
  server.barrier();
  const std::string before = minute_from_now(1h);
  stepped.step(1h);
  server.barrier();
  const std::string seen = stepped.minute_of_last_record();
  CHECK(seen >= before);  // the step was really there
  CHECK(seen <= minute_from_now(1h));
  CHECK(worker.is_alive());
  CHECK(count(server.records(), "expired", worker.pid()) == 0);
  server.send(release(worker.pid(), "a minute"));
  server.barrier();
  CHECK(server.stop() == exited(0));
  CHECK(server.records().back().array("left").size() == 0);
}

TEST_CASE("a wall clock that steps an hour back delays no expiry") {
  const TempFolder temp;
  SteppedServer stepped(temp);
  Server& server = stepped.server;
  Worker worker("block");
  server.send(acquire(worker.pid(), "two seconds", 2s));
  server.barrier();
  stepped.step(-1h);
  server.barrier();
  CHECK(worker.status() == killed_by(SIGKILL));
  const Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("scope") == "two seconds");
  CHECK(killed.text("time").substr(0, 16) <= minute_from_now(-1h));
}
