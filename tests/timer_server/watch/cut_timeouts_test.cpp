// SPDX-License-Identifier: MIT
#include "timer_server/watch/cut_timeouts.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct CutStage : WorkerParts {
  explicit CutStage(Duration max_timeout = 10s) : cut(max_timeout, records, *log) {}

  // The names that were recorded, in order.
  std::vector<std::string> recorded() {
    std::vector<std::string> names;
    for (const testing::Record& record : records_of("warned")) {
      names.push_back(record.text("scope"));
    }
    return names;
  }

  Worker& worker = add_worker(4711);
  CutTimeouts cut;
};

using Recorded = std::vector<std::string>;

}  // namespace

TEST_CASE("A timeout over --max-timeout is recorded with what was asked for and granted") {
  CutStage stage;
  stage.cut.note(stage.worker, "forward", 10s + 1ns);
  stage.cut.note(stage.worker, "short", 10s);
  const testing::Records records = stage.records_of("warned");
  REQUIRE(records.size() == 1);
  CHECK(records[0].is("warned", 4711));
  CHECK(records[0].text("scope") == "forward");
  CHECK(records[0].number("asked_s") > 10);
  CHECK(records[0].number("granted_s") == 10);
}

TEST_CASE("A name whose timeout is cut is recorded once for all workers") {
  CutStage stage;
  Worker& other = stage.add_worker(4712);
  stage.cut.note(stage.worker, "forward", 5s);
  stage.cut.note(stage.worker, "forward", 20s);
  stage.cut.note(stage.worker, "forward", 30s);
  stage.cut.note(other, "forward", 20s);
  stage.cut.note(other, "backward", kForever);
  CHECK(stage.recorded() == Recorded{"forward", "backward"});
}

TEST_CASE("Without --max-timeout no timeout is cut") {
  CutStage stage(kForever);
  stage.cut.note(stage.worker, "forward", kForever);
  CHECK(stage.recorded().empty());
}

TEST_CASE("At most 1,024 names with cut timeouts are recorded") {
  CutStage stage;
  for (int i = 0; i < 1'100; ++i) {
    stage.cut.note(stage.worker, fmt::format("s{}", i), 20s);
  }
  CHECK(stage.recorded().size() == 1'024);
  CHECK(stage.recorded().back() == "s1023");
}
