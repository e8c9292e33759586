// The log on a faulty file system. A kill never depends on it, and waiting records are written in
// order later.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

// Checks that each `killed` record follows its `expired` one, in the order of the kills.
void check_order(const Records& records, const std::vector<std::string>& scopes) {
  std::vector<std::string> expired;
  std::vector<std::string> killed;
  std::int64_t last_mono = 0;
  for (const Record& record : records) {
    if (record.is("expired")) {
      expired.push_back(record.text("scope"));
      CHECK(record.integer("mono_ns") >= last_mono);
      last_mono = record.integer("mono_ns");
    } else if (record.is("killed")) {
      killed.push_back(record.text("scope"));
      CHECK(std::count(expired.begin(), expired.end(), killed.back()) == 1);
    }
  }
  CHECK(expired == scopes);
  CHECK(killed == scopes);
}

}  // namespace

namespace {

void expect_records_when_mended(const char* fault_variable, const std::string& message) {
  const TempFolder temp;
  const std::string fault = temp.path("fault");
  Server server(temp, on_bad_disk(fault_variable, fault));
  expect_kill(server, "before");
  server.wait_for("killed", "before");
  write_file(fault, "");
  for (const char* scope : {"bad 1", "bad 2", "bad 3"}) {
    expect_kill(server, scope);
  }
  server.wait_for_message(message);
  REQUIRE(::unlink(fault.c_str()) == 0);
  server.wait_for("killed", "bad 3");
  check_order(server.records(), {"before", "bad 1", "bad 2", "bad 3"});
}

}  // namespace

TEST_CASE("kills continue while the log is read-only, and their records are written later") {
  expect_records_when_mended("BAD_DISK_READ_ONLY", "Read-only file system");
}

TEST_CASE("kills continue while the log does not answer, and their records are written later") {
  expect_records_when_mended("BAD_DISK_HANGS", "does not answer");
}

TEST_CASE("kills continue while RLIMIT_FSIZE lets no log grow") {
  constexpr rlim_t kRoom = 1 << 16;
  const TempFolder temp;
  const std::string log = temp.path("full");
  write_file(log, std::string(kRoom, '\n'));
  Server server(temp, {.args = {"--log", log}, .in_child = [] {
                         const rlimit room{kRoom, kRoom};
                         ::setrlimit(RLIMIT_FSIZE, &room);
                       }});
  server.leave_log_unjudged("it has no record");
  expect_kill(server, "hung");
  server.wait_for_message("File too large");
  CHECK(server.stop() == exited(0));
}

TEST_CASE("a server whose log does not answer still stops") {
  const TempFolder temp;
  const std::string fault = temp.path("hangs");
  Server server(temp, on_bad_disk("BAD_DISK_HANGS", fault));
  write_file(fault, "");
  expect_kill(server, "hung");
  CHECK(server.stop().signal == 0);
  CHECK(contains(server.err(), "the log '" + server.log() + "' could not be written to the end\n"));
}

TEST_CASE("a log that does not answer at the start does not delay kills") {
  const TempFolder temp;
  const std::string fault = temp.path("hangs");
  const std::string metrics = temp.path("metrics");
  write_file(fault, "");
  Server server(
      temp, on_bad_disk("BAD_DISK_HANGS", fault, {"--metrics", metrics, "--max-interval", "20ms"}));
  expect_kill(server, "hung");
  server.wait_for_message("does not answer");
  CHECK(contains(run_client(server, {"status"}).out, "does not answer"));
  const auto has = [&](const char* name, const char* value) {
    return contains(read_file(metrics),
                    fmt::format("\nfiletimer_{}{{dir=\"{}\"}} {}", name, server.dir(), value));
  };
  CHECK(wait_until([&] { return has("log_working", "0\n"); }));
  for (const char* const name : {"log_waiting_records", "log_lag_seconds"}) {
    CHECK((has(name, "") && !has(name, "0\n")));
  }
}

TEST_CASE("a log over --log-max is renamed, and a new one is begun") {
  Server server({"--log-max", "64K", "--evidence", "none"});
  const std::string old = server.log() + ".1";
  Worker worker("block");
  // One at a time, so that the log is seen as soon as it has been renamed.
  for (int i = 0; !exists(old); ++i) {
    const std::string scope = fmt::format("scope {}", i);
    server.send(version1(worker.pid(), scope, 1, 0));
    REQUIRE(wait_until([&] {
      return exists(old) || read_file(server.log()).find('"' + scope + '"') != std::string::npos;
    }));
    REQUIRE(i < 1000);
  }
  struct stat st {};
  REQUIRE(::stat(old.c_str(), &st) == 0);
  CHECK(st.st_size >= 65536);
  CHECK(st.st_size < 65536 + 4096);  // and not one record more than it took
  server.send(version1(worker.pid(), "last", 1, 0));
  server.wait_for("killed", "last");
  CHECK(server.stop() == exited(0));
  CHECK(read_log(old).front().is("server_started"));
  CHECK(server.records().back().is("server_stopped"));
}

TEST_CASE("SIGHUP reopens a log that a rotator has moved") {
  const TempFolder temp;
  Server server(temp);
  expect_kill(server, "before");
  server.wait_for("killed", "before");
  const std::string moved = temp.path("moved.jsonl");
  REQUIRE(::rename(server.log().c_str(), moved.c_str()) == 0);
  server.process().signal(SIGHUP);
  CHECK(wait_until([&] { return exists(server.log()); }));  // and not with the next record
  expect_kill(server, "after");
  server.wait_for("killed", "after");
  CHECK(count(read_log(moved), "killed") == 1);
  CHECK(count(server.records(), "killed") == 1);
  CHECK(server.process().is_alive());
}

TEST_CASE("the first record after half a line of an old log is on a line of its own") {
  const TempFolder temp;
  const std::string log = temp.path("log.jsonl");
  write_file(log, "{\"schema\":1,\"event\":\"expi");
  Server server(temp, {"--log", log});
  expect_kill(server, "s");
  REQUIRE(wait_until([&] { return read_file(log).find("\"killed\"") != std::string::npos; }));
  const std::string text = read_file(log);
  const std::string rest = text.substr(text.find('\n') + 1);
  write_file(temp.path("rest.jsonl"), rest);
  const Records records = read_log(temp.path("rest.jsonl"));
  REQUIRE_FALSE(records.empty());
  CHECK(records.front().is("server_started"));
}
