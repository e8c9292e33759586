// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "common/limits.hpp"
#include "timer_server/core.hpp"

using namespace filetimer;

TEST_CASE("The first rejection is reported at once, and later ones once a second with a count") {
  Rejections rejections;
  Instant now{1'000'000'000'000};
  CHECK(rejections.next_report().is_never());
  CHECK(!rejections.take(now));

  rejections.add("bad", "line", 7);
  auto report = rejections.take(now);
  REQUIRE(report);
  CHECK(report->count == 1);
  CHECK(report->pid == 7);

  for (int i = 0; i < 100; ++i) {
    rejections.add("worse", "begin" + std::string(300, 'x'), 0);
  }
  CHECK(!rejections.take(now + (Rejections::kInterval - Duration{1})));
  CHECK(rejections.next_report() == now + Rejections::kInterval);
  report = rejections.take(now + Rejections::kInterval);
  REQUIRE(report);
  CHECK(report->count == 100);
  CHECK(report->reason == "worse");
  CHECK(report->line.size() == kMaxRejectedBytesShown);
  CHECK(report->line.starts_with("beginx"));
  CHECK(rejections.total() == 101);
  // A forced report comes however recent the last one is.
  now = now + Rejections::kInterval;
  rejections.add("last", "", 0);
  CHECK(!rejections.take(now));
  CHECK(rejections.take(now, true));
}
