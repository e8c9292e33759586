// SPDX-License-Identifier: MIT
#include "timer_server/status_report.hpp"

#include <doctest/doctest.h>

#include <string>

#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

std::string text_of(const ServerStatus& status, const Settings& settings = {},
                    const KillPath& kill_path = {}) {
  JsonWriter json;
  write_status(json, status, settings, kill_path);
  return std::move(json).finish();
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A status has COMMAND and troubles only if there are any") {
  ServerStatus status;
  status.uptime = 1500ms;
  status.announcement = Announcement::kDraining;
  status.killed = 3;
  const std::string plain = text_of(status);
  CHECK(contains(plain, R"("uptime_s":1.500)"));
  CHECK(contains(plain, R"("announcement":"draining")"));
  CHECK(contains(plain, R"("killed":3)"));
  CHECK_FALSE(contains(plain, "command_pid"));
  CHECK_FALSE(contains(plain, "trouble"));
  status.command_pid = 4711;
  status.is_log_working = false;
  status.pipe_trouble = "another server reads it";
  const std::string troubled = text_of(status);
  CHECK(contains(troubled, R"("command_pid":4711)"));
  CHECK(contains(troubled, R"("log_trouble":")"));
  CHECK(contains(troubled, R"("pipe_trouble":"another server reads it")"));
}

TEST_CASE("Settings that were not given are left out, and --grace off is null") {
  Settings settings;
  const std::string plain = text_of({}, settings);
  CHECK_FALSE(contains(plain, "max_timeout_s"));
  CHECK_FALSE(contains(plain, "grace_s"));
  CHECK_FALSE(contains(plain, "metrics"));
  CHECK(contains(plain, R"("kill":"tree")"));
  settings.max_timeout = 90s;
  settings.metrics = "/run/job.prom";
  settings.grace.emplace(std::nullopt);
  settings.kill.mode = KillMode::kProcess;
  const std::string given = text_of({}, settings);
  CHECK(contains(given, R"("max_timeout_s":90)"));
  CHECK(contains(given, R"("grace_s":null)"));
  CHECK(contains(given, R"("metrics":"/run/job.prom")"));
  CHECK(contains(given, R"("kill":"process")"));
}

TEST_CASE("Whether signals can be sent is null if it was not tried") {
  KillPath path;
  CHECK(contains(text_of({}, {}, path), R"("signal":null)"));
  path.signal = true;
  CHECK(contains(text_of({}, {}, path), R"("signal":true)"));
}

TEST_CASE("The records of a start and a stop have the counts of the server") {
  const filetimer::Records records(RecordOrigin::of_this_process("/run/job"));
  ServerStatus status;
  status.log = "/var/log/expired.jsonl";
  status.killed = 3;
  const std::string start = start_record(records, status, {}, {}, {5, 2});
  CHECK(contains(start, R"("event":"server_started")"));
  CHECK(contains(start, R"("log":"/var/log/expired.jsonl","settings":{)"));
  CHECK(contains(start, R"("adopted_scopes":5,"ended_scopes":2)"));
  WorkerParts parts;
  parts.acquire(parts.add_worker(made_up_process(4711)), "forward",
                terms_between({1'000}, {2'000}));
  const std::string stop =
      stop_record(records, status, "SIGTERM", OpenScopes(parts.workers, parts.policy));
  CHECK(contains(stop, R"("reason":"SIGTERM","requests")"));
  CHECK(contains(stop, R"("killed":3)"));
  CHECK(contains(stop, R"("left":[{"pid":4711,"scope":"forward","elapsed_s":)"));
  CHECK(contains(stop, R"("left_count":1})"));
  status.command_status = 137;
  CHECK(contains(
      stop_record(records, status, "COMMAND ended", OpenScopes(parts.workers, parts.policy)),
      R"("reason":"COMMAND ended","command_status":137,)"));
}
