// Compares the records of a whole server with docs/records.md: all fields of records about the
// server itself, and no field that the document does not name.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/records_doc.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

TEST_CASE("a server writes about itself exactly the fields that docs/records.md names") {
  const TempFolder temp;
  Server server(temp,
                {"--max-timeout", "1h", "--default-timeout", "30s", "--grace", "off", "--warn-at",
                 "0.5", "--slow-factor", "1.2", "--metrics", temp.path("filetimer.prom")});
  Worker hung("block", {.environment = {{"RANK", "2"}}});
  Worker other("block", {.environment = {{"RANK", "0"}}});
  Worker ends("on-eof", {.args = {"0"}});
  server.send("no request\n" + acquire(other.pid(), "exchange", std::chrono::hours(2)) +
              acquire_far(ends.pid(), "step") + acquire(hung.pid(), "load", 200ms));
  server.wait_for("killed", hung.pid());
  ends.let_go();
  server.wait_for("left_open", ends.pid());
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
  Server with_command(temp, Server::Setup{.folder = "other", .command = {"false"}});
  const auto stopped =
      with_command.wait_for([](const Record& record) { return record.is("server_stopped"); });
  check_fields("server_stopped", {server.records().back().line(), stopped.line()});
}
