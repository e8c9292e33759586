// The measurements: one function for each part of the table.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "tests/bench/processes.hpp"
#include "tests/bench/report.hpp"
#include "tests/bench/server_under_test.hpp"

namespace filetimer::bench {

// The sizes of all measurements: --smoke, --quick or the full ones.
struct Plan {
  int expiries = 300;        // a killer, machine idle
  int busy_expiries = 200;   // a killer, with busy loops
  int torch_expiries = 100;  // each takes PyTorch's server up to 0.1 s
  int busy_loops = 8;
  int ingest_rounds = 7;       // each: bare reader, then ours
  int ingest_lines = 600'000;  // a round
  int workers = 1000;          // of the large table
  int scopes_per_worker = 100;
  int idle_seconds = 20;
  int client_batches = 200;
  int torch_scopes = 300;
  int evidence_expiries = 40;            // a level of evidence
  std::vector<int> crowds{8, 64, 1000};  // numbers of workers that expire together
  int page_expiries = 300;
  int page_scopes = 2'000'000;  // of each of four processes
  int page_workers = 500;       // whose memory in the server is measured
  int page_scopes_idle = 10'000;
  int python_batches = 100;

  bool with_torch = true;
  std::string server = FILETIMER_SERVER;
  std::string memory_dir;  // a folder in memory
  std::string disk_dir;    // a folder on a disk; empty: none
};

void measure_deadlines_idle(const Plan& plan, Report& report);
void measure_deadlines_busy(const Plan& plan, Report& report);
void measure_ingest(const Plan& plan, Report& report);
void measure_client(const Plan& plan, Report& report);
void measure_evidence(const Plan& plan, Report& report);
void measure_crowds(const Plan& plan, Report& report);
void measure_pages(const Plan& plan, Report& report);
void measure_python(const Plan& plan, Report& report);

// A server with many open scopes, whose deadlines are far. It keeps running, so that its idle
// wakeups are counted during other measurements.
struct IdleServer {
  std::vector<Child> workers;
  ServerUnderTest server;
  std::string title;
  int threads;  // that wake for a sweep
  Instant since{};
  std::uint64_t switches = 0;

  // Begins to count, when all scopes are open.
  void watch();
  void finish(const Plan& plan, Report& report);
};

IdleServer fill_table(const Plan& plan, Report& report);
IdleServer open_idle_pages(const Plan& plan);

}  // namespace filetimer::bench
