// Scope pages on the server's side: the lateness of verdicts, how often workers wake the server and
// it wakes by itself, and the memory of one more worker. client.cpp measures the cost of a scope
// for the worker.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <tuple>

#include "common/page_reader.hpp"
#include "tests/bench/sections.hpp"
#include "timer_server/scopes/worker_page.hpp"

namespace filetimer::bench {
namespace {

using std::chrono::milliseconds;

constexpr double kTargetVerdictP50 = 0.15;   // ms
constexpr double kTargetVerdictP99 = 2;      // ms
constexpr double kTargetWorkerBytes = 8192;  // of the server's memory
constexpr double kTargetWakes = 100;         // "a handful, not millions"
constexpr int kWritingWorkers = 4;
constexpr const char* kObservedScope = "forward";

// Starts workers that connect, hold the scopes of `open`, and wait until they are killed. Returns
// when `open` has returned in all of them.
std::vector<Child> fork_workers(const std::string& dir, int count,
                                const std::function<std::vector<TimerScope>(TimerClient&)>& open) {
  const Pipe done = make_pipe();
  std::vector<Child> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(fork_child([&] {
      TimerClient client = TimerClient::connect({.dir = dir});
      const std::vector<TimerScope> scopes = open(client);
      write_all(done.write.get(), "\n", 1);
      for (;;) {
        ::pause();
      }
    }));
  }
  for (int i = 0; i < count; ++i) {
    char byte = 0;
    read_all(done.read.get(), &byte, 1);
  }
  return workers;
}

// Returns the number of wake-up messages that the workers of a directory have written.
std::uint64_t wakes_in(const std::string& dir) {
  std::uint64_t wakes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/scopes")) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file() || !is_page_name(name)) {
      continue;
    }
    if (auto page = MappedPage::open(entry.path(), name)) {
      wakes += (*page)->layout().header().wakes.load(std::memory_order_relaxed);
    }
  }
  return wakes;
}

// Runs a worker that holds scopes past their deadlines, one after the other, and is not killed.
void hold_past_deadlines(const std::string& dir, int scopes) {
  constexpr auto kTimeout = milliseconds(3);
  // A server that wakes later than this finds the scope released and does not judge it.
  constexpr auto kHeldAfterDeadline = milliseconds(25);
  Child worker = fork_child([&] {
    TimerClient client = TimerClient::connect({.dir = dir});
    for (int i = 0; i < scopes; ++i) {
      const auto scope = client.expires(kTimeout, kObservedScope, {.signal = 0});
      sleep_for(kTimeout + kHeldAfterDeadline);
    }
  });
  worker.wait();
}

void measure_verdicts(const Plan& plan, Report& report) {
  report.section("deadline to verdict, scope on a page", "the limit");
  const std::string dir = plan.memory_dir + "/verdicts";
  ServerUnderTest server(plan.server, dir, {}, {"--evidence", "none"});
  hold_past_deadlines(dir, plan.page_expiries);
  server.stop();
  Samples late;
  for (const double ms : server.verdict_delays(kObservedScope)) {
    late.add(ms);
    if (ms < 0) {
      report.fault(fmt::format("a verdict {} ms before its deadline", -ms));
    }
  }
  if (late.count() != static_cast<std::size_t>(plan.page_expiries)) {
    report.fault(fmt::format("{} of {} scopes held past their deadline were judged", late.count(),
                             plan.page_expiries));
  }
  for (const auto& [name, q, limit] :
       {std::tuple("p50", 0.5, kTargetVerdictP50), std::tuple("p99", 0.99, kTargetVerdictP99)}) {
    report.add(fmt::format("deadline to verdict, {}", name), "ms", late.quantile(q), limit,
               Target::value_at_most(limit));
  }
}

void measure_wakes(const Plan& plan, Report& report) {
  const int scopes = plan.page_scopes;
  report.section(fmt::format("{} processes, {} scopes of 30 s each", kWritingWorkers, scopes),
                 "one line a scope");
  const std::string dir = plan.memory_dir + "/wakes";
  ServerUnderTest server(plan.server, dir);
  std::vector<Child> workers = fork_workers(dir, kWritingWorkers, [&](TimerClient& client) {
    for (int n = 0; n < scopes; ++n) {
      const auto scope = client.expires(std::chrono::seconds(30), "forward");
    }
    return std::vector<TimerScope>{};
  });
  report.add("wake lines written, all processes", "", static_cast<double>(wakes_in(dir)),
             static_cast<double>(scopes) * kWritingWorkers, Target::value_at_most(kTargetWakes));
  workers.clear();  // its page is removed with a worker
  server.stop();
}

void measure_memory(const Plan& plan, Report& report) {
  report.section(fmt::format("{} workers with pages, 4 open scopes each", plan.page_workers),
                 "the same server empty");
  const std::string dir = plan.memory_dir + "/memory";
  ServerUnderTest server(plan.server, dir, {}, {"--evidence", "none"});
  const double empty = server.resident_at_rest();
  const auto workers = fork_workers(dir, plan.page_workers, [](TimerClient& client) {
    std::vector<TimerScope> open;
    for (const char* name : {"step", "forward", "exchange", "barrier"}) {
      open.push_back(client.expires(std::chrono::hours(1), name));
    }
    return open;
  });
  const double full = server.resident_at_rest();
  constexpr double kMega = 1024 * 1024;
  report.add("resident", "MiB", full / kMega, empty / kMega);
  const auto shared = static_cast<double>(resident_bytes(server.pid(), dir + "/scopes"));
  report.add("one worker more, what it has mapped of its page included", "bytes",
             (full - empty) / plan.page_workers);
  report.add("  the server's alone", "bytes", (full - empty - shared) / plan.page_workers, {},
             Target::value_at_most(kTargetWorkerBytes));
}

}  // namespace

IdleServer open_idle_pages(const Plan& plan) {
  const std::string dir = plan.memory_dir + "/idle-pages";
  IdleServer pages{
      .workers = {},
      .server = {plan.server, dir},
      .title = fmt::format("{} open scopes on pages, deadlines far", plan.page_scopes_idle),
      .threads = 1};
  const int workers = std::max(plan.page_scopes_idle / 1000, 1);
  pages.workers = fork_workers(dir, workers, [&](TimerClient& client) {
    std::vector<TimerScope> open;
    for (int n = 0; n < plan.page_scopes_idle / workers; ++n) {
      open.push_back(client.expires(std::chrono::hours(1), fmt::format("scope {}", n)));
    }
    return open;
  });
  pages.server.settle();
  pages.watch();
  return pages;
}

void measure_pages(const Plan& plan, Report& report) {
  measure_verdicts(plan, report);
  measure_wakes(plan, report);
  measure_memory(plan, report);
}

}  // namespace filetimer::bench
