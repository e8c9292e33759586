// The time from exec to the ready line.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "common/clock.hpp"
#include "tests/bench/processes.hpp"
#include "tests/bench/samples.hpp"
#include "tests/bench/sections.hpp"
#include "tests/bench/server_under_test.hpp"

namespace filetimer::bench {
namespace {

constexpr double kTargetMs = 30;

double milliseconds_since(Instant begin) {
  return static_cast<double>((Instant::now() - begin).count()) / 1e6;
}

}  // namespace

void measure_start(const Plan& plan, Report& report) {
  report.section("start", "this program started to print one line");
  Samples ours;
  Samples bare;
  for (int i = 0; i < plan.starts; ++i) {
    Pipe out = make_pipe();
    Instant begin = Instant::now();
    Child line = spawn({"/proc/self/exe", "--print-line"}, -1, out.write.get(), -1);
    read_line(out.read.get());
    bare.add(milliseconds_since(begin));
    line.wait();

    begin = Instant::now();
    ServerUnderTest server(plan.server, fmt::format("{}/start-{}", plan.memory_dir, i));
    ours.add(milliseconds_since(begin));
    server.stop();
  }
  report.add({.measure = fmt::format("exec to the ready line, median of {}", plan.starts),
              .unit = "ms",
              .value = ours.median(),
              .base = bare.median(),
              .target = Target::value_at_most(kTargetMs)});
}

}  // namespace filetimer::bench
