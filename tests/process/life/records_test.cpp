// Compares the records of a whole server with docs/records.md: all fields of records about the
// server itself, and no field that the document does not name.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/mapped_file.hpp"
#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/records_doc.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

std::string settings_of(const Server& server) {
  return simdjson::minify(server.records().front().at("settings"));
}

}  // namespace

TEST_CASE("a server writes about itself exactly the fields that docs/records.md names") {
  const TempFolder temp;
  Server server(temp, {"--max-timeout", "1h", "--default-timeout", "30s", "--grace", "off",
                       "--warn-at", "0.5", "--metrics", temp.path("filetimer.prom")});
  Worker hung("block", {.environment = {{"RANK", "2"}}});
  Worker other("block", {.environment = {{"RANK", "0"}}});
  Worker ends("on-eof", {.args = {"0"}});
  server.send("no request\n" + acquire(other.pid(), "exchange", std::chrono::hours(2)) +
              acquire_far(ends.pid(), "step") + acquire(hung.pid(), "load", 200ms));
  server.wait_for("killed", hung.pid());
  ends.let_go();
  server.wait_for("left_open", ends.pid());
  const auto page = filetimer::MappedFile::map(
      server.dir() + "/server", filetimer::MappedFile::Access::kRead, filetimer::kBoardBytes);
  REQUIRE(page.has_value());
  const auto& board = *static_cast<const filetimer::Board*>(page->data());
  CHECK(filetimer::Duration{board.max_timeout} == 1h);
  CHECK(filetimer::Duration{board.default_timeout} == 30s);
  CHECK(board.warn_at == 1U << 31);  // half of the timeout
  CHECK(board.server_pid == server.pid());
  CHECK(server.stop() == exited(0));

  const RecordsDoc doc = read_records_doc();
  for (const filetimer::testing::Record& record : server.records()) {
    CAPTURE(record.line());
    const std::string event = event_of(record.line());
    REQUIRE(doc.events.contains(event));
    for (const std::string& name : fields_of(record.line())) {
      CAPTURE(name);
      CHECK(doc.events.at(event).contains(name));
    }
  }
  check_fields("server_started", {server.records().front().line()});
  CHECK(settings_of(server) ==
        fmt::format(R"({{"default_timeout_s":30,"max_timeout_s":3600,"warn_at":0.5,)"
                    R"("max_wait_s":3600,"max_interval_s":3600,"grace_s":null,"kill_wait_s":30,)"
                    R"("evidence_timeout_s":2,"kill":"tree","stopped":"defer","evidence":"stacks",)"
                    R"("dry_run":false,"realtime":false,"on_expiry":false,"on_warning":false,)"
                    R"("evidence_command":false,"evidence_drop_ins":[],"log_max_bytes":67108864,)"
                    R"("metrics":"{}"}})",
                    temp.path("filetimer.prom")));
  Server with_command(
      temp, Server::Setup{
                .args = {"--kill", "process", "--stopped", "kill", "--dry-run", "--on-expiry",
                         "true", "--on-warning", "true", "--evidence-command", "true", "--evidence",
                         "proc", "--max-interval", "2s", "--kill-wait", "3s", "--grace", "4s"},
                .folder = "other",
                .command = {"false"}});
  const auto stopped = with_command.wait_for("server_stopped");
  CHECK(settings_of(with_command) ==
        R"({"max_wait_s":3600,"max_interval_s":2,"grace_s":4,"kill_wait_s":3,)"
        R"("evidence_timeout_s":2,"kill":"process","stopped":"kill","evidence":"proc",)"
        R"("dry_run":true,"realtime":false,)"
        R"("on_expiry":true,"on_warning":true,"evidence_command":true,)"
        R"("evidence_drop_ins":[],"log_max_bytes":67108864})");
  check_fields("server_stopped", {server.records().back().line(), stopped.line()});
}
