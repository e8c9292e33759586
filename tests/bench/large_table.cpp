// Many timers of many processes: the memory of each, and how often an idle server wakes.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cmath>

#include "tests/bench/sections.hpp"

namespace filetimer::bench {
namespace {

constexpr double kTargetBytesPerScope = 200;
constexpr double kTargetMegabytes = 8;
constexpr double kHousekeepingSeconds = 10;  // the default of --max-interval

void open_scopes(const ServerUnderTest& server, const std::vector<Child>& workers, int first,
                 int last) {
  const double deadline = unix_in(std::chrono::hours(1));
  for (const Child& worker : workers) {
    std::string lines;
    for (int scope = first; scope < last; ++scope) {
      // As long as PyTorch's default name, "contextlib.py#137".
      lines += request_line(worker.pid(), fmt::format("block_{:04}/forward", scope), deadline);
    }
    server.send(lines);
  }
}

}  // namespace

IdleServer fill_table(const Plan& plan, Report& report) {
  const int timers = plan.workers * plan.scopes_per_worker;
  std::vector<Child> forked;
  for (int i = 0; i < plan.workers; ++i) {
    forked.push_back(fork_idle());
  }
  // With so many workers a side thread looks for halted ones, so two threads wake for a sweep.
  IdleServer table{.workers = std::move(forked),
                   .server = {plan.server, plan.memory_dir + "/large", {}, {"--evidence", "none"}},
                   .title = fmt::format("{} live timers of {} processes", timers, plan.workers),
                   .threads = 2};
  const ServerUnderTest& server = table.server;
  report.section(table.title, "the same server empty");
  const double empty = server.resident_at_rest();
  open_scopes(server, table.workers, 0, 1);
  const double one_each = server.resident_at_rest();
  open_scopes(server, table.workers, 1, plan.scopes_per_worker);
  const double full = server.resident_at_rest();
  constexpr double kMega = 1024 * 1024;
  report.add(fmt::format("resident at {} timers, one a process", plan.workers), "MiB",
             one_each / kMega, empty / kMega, Target::value_at_most(kTargetMegabytes));
  report.add(fmt::format("resident at {} timers", timers), "MiB", full / kMega, empty / kMega);
  report.add("an open scope, its share of its worker included", "bytes", (full - empty) / timers,
             {}, Target::value_at_most(kTargetBytesPerScope));
  report.add("  of it the scope alone", "bytes", (full - one_each) / (timers - plan.workers));
  table.watch();
  return table;
}

void IdleServer::watch() {
  wait_until_quiet(server.pid());
  since = Instant::now();
  switches = voluntary_switches(server.pid());
}

void IdleServer::finish(const Plan& plan, Report& report) {
  const Duration wanted = std::chrono::seconds(plan.idle_seconds);
  const Duration idle = Instant::now() - since;
  if (idle < wanted) {
    sleep_for(wanted - idle);
  }
  const std::uint64_t woken = voluntary_switches(server.pid()) - switches;
  const std::chrono::duration<double> watched = Instant::now() - since;
  // A window has at most one sweep more than whole periods.
  const double sweeps = std::floor(watched.count() / kHousekeepingSeconds) + 1;
  report.section("idle, " + title, "housekeeping every 10 s, the default --max-interval");
  report.add(fmt::format("wakeups in {:.0f} s, all threads", watched.count()), "",
             static_cast<double>(woken), threads * sweeps, Target::ratio_at_most(1));
  if (const LastWords words = server.stop(); words.rejected != 0) {
    report.fault(fmt::format("{} requests rejected: {}", words.rejected, title));
  }
}

}  // namespace filetimer::bench
