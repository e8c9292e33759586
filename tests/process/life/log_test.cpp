// The log on a faulty file system. A kill never depends on it, and waiting records are written in
// order later.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

TEST_CASE("kills continue while the log is read-only or does not answer, and are recorded later") {
  for (const auto& [kind, message] : {std::pair("BAD_DISK_READ_ONLY", "Read-only file system"),
                                      std::pair("BAD_DISK_HANGS", "does not answer")}) {
    const TempFolder temp;
    Server server(temp, on_bad_disk(temp, kind));
    expire(server, "before");
    temp.write("fault", "");
    for (const char* scope : {"bad 1", "bad 2", "bad 3"}) {
      expect_kill(server, scope);
    }
    server.wait_for_message(message);
    REQUIRE(std::filesystem::remove(temp.path("fault")));
    server.wait_for("killed", "bad 3");
    const std::vector<std::string> in_order{"before", "bad 1", "bad 2", "bad 3"};
    CHECK(scopes_of(server.records(), "expired") == in_order);
    CHECK(scopes_of(server.records(), "killed") == in_order);
  }
}

TEST_CASE("kills continue while RLIMIT_FSIZE lets no log grow") {
  constexpr rlim_t kRoom = 1 << 16;
  const TempFolder temp;
  const std::string log = temp.path("full");
  write_file(log, std::string(kRoom, '\n'));
  Server server(temp, {.args = {"--log", log}, .in_child = limit(RLIMIT_FSIZE, {kRoom, kRoom})});
  server.leave_log_unjudged("it has no record");
  expect_kill(server, "hung");
  server.wait_for_message("File too large");
  CHECK(server.stop() == exited(0));
}

TEST_CASE("a log that does not answer from the start delays neither kills nor the server's stop") {
  const TempFolder temp;
  const std::string metrics = temp.path("metrics");
  temp.write("fault", "");
  Server server(
      temp, on_bad_disk(temp, "BAD_DISK_HANGS", {"--metrics", metrics, "--max-interval", "20ms"}));
  expect_kill(server, "hung");
  server.wait_for_message("does not answer");
  CHECK(contains(run_client(server, {"status"}).out, "does not answer"));
  CHECK(wait_until([&] { return metric_of(server, metrics, "log_working") == "0"; }));
  for (const char* const name : {"log_waiting_records", "log_lag_seconds"}) {
    CHECK(metric_of(server, metrics, name) > "0");
  }
  CHECK(server.stop().signal == 0);
  CHECK(contains(server.err(), "the log '" + server.log() + "' could not be written to the end\n"));
}

TEST_CASE("the evidence in kill files leaves room in the backlog for later kills") {
  const TempFolder temp;
  Server server(temp);
  server.leave_log_unjudged("its kills are made up");
  server.kill();
  std::filesystem::create_directories(server.dir() + "/kills");
  std::string evidence;  // lines that are shorter than any other record fill the whole backlog
  while (evidence.size() < 60'000) {
    evidence +=
        R"({"schema":1,"event":"evidence","id":"past","pad":")" + std::string(200, 'x') + "\"}\n";
  }
  for (int i = 0; i < 300; ++i) {
    write_file(
        fmt::format("{}/kills/past-{}", server.dir(), i),
        evidence +
            fmt::format(R"({{"stage":"judged","version":1,"pid":2,"scopes":[{{"id":"past-{}"}}]}})",
                        i) +
            "\n{\"stage\":\"ended\",\"verdict\":\"dead\"}\n");
  }
  temp.write("fault", "");
  Server next(temp, on_bad_disk(temp, "BAD_DISK_HANGS"));
  next.leave_log_unjudged("its kills are made up");
  expect_kill(next, "later");
  next.wait_for_message("does not answer");
  REQUIRE(std::filesystem::remove(temp.path("fault")));
  CHECK(wait_until([&] { return contains(read_file(next.log()), R"("event":"killed")"); }));
}

TEST_CASE("a log over --log-max is renamed, and a new one is begun") {
  Server server({"--log-max", "64K", "--evidence", "none"});
  const std::string old = server.log() + ".1";
  Worker worker("block");
  // One at a time, so that the log is seen as soon as it has been renamed.
  for (int i = 0; !exists(old); ++i) {
    const std::string scope = fmt::format("scope {}", i);
    server.send(version1(worker.pid(), scope, 1, 0));
    REQUIRE(wait_until(
        [&] { return exists(old) || contains(read_file(server.log()), '"' + scope + '"'); }));
    REQUIRE(i < 1000);
  }
  CHECK(std::filesystem::file_size(old) >= 65536);
  CHECK(std::filesystem::file_size(old) < 65536 + 4096);  // and not one record more than it took
  server.send(version1(worker.pid(), "last", 1, 0));
  server.wait_for("killed", "last");
  CHECK(server.stop() == exited(0));
  CHECK(read_log(old).front().is("server_started"));
  CHECK(server.records().back().is("server_stopped"));
}

TEST_CASE("SIGHUP reopens a log that a rotator has moved") {
  Server server;
  expire(server, "before");
  const std::string moved = server.temp().path("moved.jsonl");
  REQUIRE(::rename(server.log().c_str(), moved.c_str()) == 0);
  server.process().signal(SIGHUP);
  CHECK(wait_until([&] { return exists(server.log()); }));  // and not with the next record
  expire(server, "after");
  CHECK(count(read_log(moved), "killed") == 1);
  CHECK(count(server.records(), "killed") == 1);
  CHECK(server.process().is_alive());
}

TEST_CASE("what is written to the file of a log by another descriptor goes behind its records") {
  const TempFolder temp;
  const std::string log = temp.path("log.jsonl");
  // COMMAND waits for the first record, 10 s at most.
  const std::string script =
      R"(exec "$0" --dir "$1" --log /dev/stderr -- sh -c 'tries=0
         until grep -q server_started "$0" || [ $((tries += 1)) -gt 200 ]; do sleep 0.05; done
         echo said >&2; echo too' "$2" > "$2" 2> "$2")";
  CHECK(run("/bin/sh", {"-c", script, server_path(), temp.path("run"), log}).status == exited(0));
  CHECK(contains(read_file(log), R"({"schema":1,"event":"server_started")"));
  CHECK(contains(read_file(log), "\nsaid\n"));
  CHECK(contains(read_file(log), "\ntoo\n"));
}
