// Many timers of many processes: the memory of each, and how often an idle server wakes.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cmath>

#include "common/clock.hpp"
#include "tests/bench/sections.hpp"
#include "tests/bench/server_under_test.hpp"

namespace filetimer::bench {
namespace {

constexpr double kTargetBytesPerScope = 200;
constexpr double kTargetMegabytes = 8;
constexpr double kHousekeepingSeconds = 10;  // the default of --max-interval

void open_scopes(const ServerUnderTest& server, const std::vector<Child>& workers,
                 std::size_t count, int first, int last) {
  const double deadline = far_deadline();
  for (std::size_t i = 0; i < count; ++i) {
    std::string lines;
    for (int scope = first; scope < last; ++scope) {
      // As long as PyTorch's default name, "contextlib.py#137".
      lines += acquire_line(workers[i].pid(), fmt::format("block_{:04}/forward", scope), deadline);
    }
    server.send(lines);
  }
  server.settle();
  wait_until_quiet(server.pid());
}

}  // namespace

struct LargeTable::State {
  State(const Plan& the_plan, Report& the_report)
      : plan(the_plan),
        report(the_report),
        server(plan.server, plan.memory_dir + "/large", {}, {"--evidence", "none"}) {
    for (int i = 0; i < plan.workers; ++i) {
      workers.push_back(fork_idle());
    }
  }

  void fill();

  const Plan& plan;
  Report& report;
  std::vector<Child> workers;
  ServerUnderTest server;
  Instant idle_since;
  std::uint64_t switches = 0;
  std::string title;
};

void LargeTable::State::fill() {
  const int timers = plan.workers * plan.scopes_per_worker;
  title = fmt::format("{} live timers of {} processes", timers, plan.workers);
  report.section(title, "the same server empty");
  server.settle();
  wait_until_quiet(server.pid());
  const auto empty = static_cast<double>(resident_bytes(server.pid()));
  open_scopes(server, workers, workers.size(), 0, 1);
  const auto one_each = static_cast<double>(resident_bytes(server.pid()));
  open_scopes(server, workers, workers.size(), 1, plan.scopes_per_worker);
  const auto full = static_cast<double>(resident_bytes(server.pid()));
  constexpr double kMega = 1024 * 1024;
  report.add({.measure = fmt::format("resident at {} timers, one a process", plan.workers),
              .unit = "MiB",
              .value = one_each / kMega,
              .base = empty / kMega,
              .target = Target::value_at_most(kTargetMegabytes)});
  report.add({.measure = fmt::format("resident at {} timers", timers),
              .unit = "MiB",
              .value = full / kMega,
              .base = empty / kMega});
  report.add({.measure = "an open scope, its share of its worker included",
              .unit = "bytes",
              .value = (full - empty) / timers,
              .target = Target::value_at_most(kTargetBytesPerScope)});
  report.add({.measure = "  of it the scope alone",
              .unit = "bytes",
              .value = (full - one_each) / (timers - plan.workers)});
}

double housekeeping_beats(std::chrono::duration<double> watched) {
  // A window has at most one sweep more than whole periods.
  return std::floor(watched.count() / kHousekeepingSeconds) + 1;
}

LargeTable::LargeTable(const Plan& plan, Report& report)
    : state_(std::make_unique<State>(plan, report)) {
  state_->fill();
  wait_until_quiet(state_->server.pid());
  state_->idle_since = Instant::now();
  state_->switches = voluntary_switches(state_->server.pid());
}

LargeTable::~LargeTable() = default;

void LargeTable::finish() {
  State& state = *state_;
  const Duration wanted = std::chrono::seconds(state.plan.idle_seconds);
  const Duration idle = Instant::now() - state.idle_since;
  if (idle < wanted) {
    sleep_for(wanted - idle);
  }
  const std::uint64_t switches = voluntary_switches(state.server.pid()) - state.switches;
  const std::chrono::duration<double> watched = Instant::now() - state.idle_since;
  state.report.section(fmt::format("idle, {}", state.title),
                       "housekeeping every 10 s, the default --max-interval");
  // With so many workers a side thread looks for halted ones, so two threads wake for a sweep.
  state.report.add({.measure = fmt::format("wakeups in {:.0f} s, all threads", watched.count()),
                    .value = static_cast<double>(switches),
                    .base = 2 * housekeeping_beats(watched),
                    .target = Target::ratio_at_most(1)});
  const LastWords words = state.server.stop();
  if (words.rejected != 0) {
    state.report.fault(fmt::format("{} of the large table's requests rejected", words.rejected));
  }
}

}  // namespace filetimer::bench
