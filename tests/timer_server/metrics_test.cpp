// The text that Prometheus reads. tests/process/life/metrics_test.cpp has a real server write one.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "timer_server/status_report.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

void check_lines(const std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(testing::contains("\n" + text, "\n" + line + "\n"));
  }
}

}  // namespace

TEST_CASE("The values of a server stand behind its folder, those of all scopes in each counter") {
  Counters counters;
  ServerStatus status{counters, "/run/job"};
  status.started.wall_ns = 1'700'000'000'250'000'000;
  status.now = {1'700'000'009'000'000'000, Instant{} + 10s};
  counters.expired["forward"] = 3;
  counters.killed["forward"] = std::numeric_limits<std::uint64_t>::max();
  counters.expired["another"] = 4;
  counters.warned["forward"] = 2;
  counters.released_late["late"] = 3;
  counters.deferred["forward"] = 4;
  counters.deferred_all = 5;
  status.open_scopes = 7;
  status.log_trouble = "full";
  status.backlog = {8, 9, Instant{} + 7500ms, 10};
  counters.lateness.add(1500ms);
  check_lines(
      metrics_text(status, "1.2.3", true),
      {R"(filetimer_up{dir="/run/job"} 1)",
       R"(filetimer_build_info{dir="/run/job",version="1.2.3"} 1)",
       R"(filetimer_start_time_seconds{dir="/run/job"} 1700000000.25)",
       R"(filetimer_collected_time_seconds{dir="/run/job"} 1700000009)",
       R"(filetimer_expired_total{dir="/run/job",scope="forward"} 3)",
       R"(filetimer_killed_total{dir="/run/job",scope="forward"} 18446744073709551615)",
       R"(filetimer_expired_total{dir="/run/job",scope="another"} 4)",
       R"(filetimer_killed_total{dir="/run/job",scope="another"} 0)",
       R"(filetimer_unkillable_total{dir="/run/job",scope="forward"} 0)",
       R"(filetimer_warned_total{dir="/run/job",scope="forward"} 2)",
       R"(filetimer_released_late_total{dir="/run/job",scope="late"} 3)",
       R"(filetimer_released_late_total{dir="/run/job",scope="another"} 0)",
       R"(filetimer_deferred_total{dir="/run/job",reason="worker_halted",scope="forward"} 4)",
       R"(filetimer_deferred_total{dir="/run/job",reason="server_missed_time"} 5)",
       R"(filetimer_open_scopes{dir="/run/job"} 7)",
       R"(filetimer_log_working{dir="/run/job"} 0)",
       R"(filetimer_log_waiting_records{dir="/run/job"} 8)",
       R"(filetimer_log_waiting_bytes{dir="/run/job"} 9)",
       R"(filetimer_log_lost_records_total{dir="/run/job"} 10)",
       R"(filetimer_verdict_lateness_max_seconds{dir="/run/job"} 1.5)",
       R"(filetimer_log_lag_seconds{dir="/run/job"} 2.5)"});
  const std::string ended = metrics_text(status, "1.2.3", false);
  check_lines(ended, {"# TYPE filetimer_up gauge", R"(filetimer_up{dir="/run/job"} 0)",
                      "# TYPE filetimer_expired_total counter",
                      "# TYPE filetimer_verdict_lateness_seconds histogram"});
  const std::string help = "# HELP filetimer_expired_total ";
  CHECK(ended.find(help) == ended.rfind(help));  // once for all scopes
}

TEST_CASE("A label value has its backslashes, quotes and newlines escaped, and is valid UTF-8") {
  Counters counters;
  counters.expired["a\\b\"c\nd é"] = 1;
  check_lines(metrics_text({counters, "/run/\xff"}, "", true),
              {"filetimer_expired_total{dir=\"/run/\\\\xff\",scope=\"a\\\\b\\\"c\\nd é\"} 1"});
}

TEST_CASE("Lateness is counted under its bound, in buckets that add up") {
  Counters counters;
  for (const Duration late :
       {Duration{0}, Duration{1ms}, Duration{1ms} + 1ns, Duration{10s} + 1ns}) {
    counters.lateness.add(late);
  }
  check_lines(metrics_text({counters}, "", true),
              {R"(filetimer_verdict_lateness_seconds_bucket{dir="",le="0.001"} 2)",
               R"(filetimer_verdict_lateness_seconds_bucket{dir="",le="0.002"} 3)",
               R"(filetimer_verdict_lateness_seconds_bucket{dir="",le="10"} 3)",
               R"(filetimer_verdict_lateness_seconds_bucket{dir="",le="+Inf"} 4)",
               R"(filetimer_verdict_lateness_seconds_count{dir=""} 4)",
               R"(filetimer_verdict_lateness_seconds_sum{dir=""} 10.002000002)"});
}

TEST_CASE("The first 64 scope names have values of their own, and the others share one") {
  CountsByScope counts;
  ++counts["(other)"];  // takes no place of a name
  for (std::size_t i = 0; i < kMaxMetricScopes; ++i) {
    const std::string name = fmt::format("scope {}", i);
    ++counts[name];
    CHECK(counts.values().at(name) == 1);
  }
  ++counts["one too many"];
  ++counts["another"];
  ++counts["scope 0"];
  CHECK(counts.values().size() == kMaxMetricScopes + 1);
  CHECK(counts.values().at("(other)") == 3);
  CHECK(counts.values().at("scope 0") == 2);
  CountsByScope with_nul;
  ++with_nul[std::string("a\0b\0", 4)];
  CHECK(with_nul.values().at("a\uFFFDb\uFFFD") == 1);  // which Prometheus can read
}

TEST_CASE(
    "A temporary file that a killed server with this pid has left does not stop the metrics") {
  const testing::TempFolder temp;
  const std::string left = fmt::format("metrics.{}.tmp", ::getpid());
  temp.write(left, "half");
  CHECK(replace_file(temp.path("metrics"), "whole").has_value());
  CHECK(testing::read_file(temp.path("metrics")) == "whole");
  CHECK_FALSE(testing::exists(temp.path(left)));
}
