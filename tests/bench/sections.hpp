// The measurements: one function for each part of the table.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tests/bench/report.hpp"

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
  int judged = 100;   // expiries beside the large and the small table
  int incidents = 5;  // each waits 2 s for the end of the previous one
  int idle_seconds = 20;
  int starts = 20;
  int client_batches = 200;
  int torch_scopes = 300;
  int evidence_expiries = 40;   // a level of evidence
  int evidence_workers = 1000;  // that expire together
  int page_expiries = 300;
  int page_scopes = 2'000'000;  // of each of four processes
  int page_workers = 500;       // whose memory in the server is measured
  int page_scopes_idle = 10'000;
  int metrics_workers = 2000;  // of a server with --metrics, and of one without
  int metrics_expiries = 50;   // a server and round
  int metrics_rounds = 3;
  std::chrono::milliseconds metrics_watched{3000};  // its sweeps, a server and round
  int pings = 5000;
  int rendezvous = 20;  // rounds
  int python_batches = 100;
  int log_bytes = 300'000'000;
  int log_rounds = 5;        // each: JSON, table, Python; and a report
  int older_incidents = 40;  // in each log from which a hang is drawn

  bool with_torch = true;
  std::string server;      // the timer_server to measure
  std::string memory_dir;  // a folder in memory
  std::string disk_dir;    // a folder on a disk; empty: none
};

void measure_deadlines_idle(const Plan& plan, Report& report);
void measure_deadlines_busy(const Plan& plan, Report& report);
void measure_ingest(const Plan& plan, Report& report);
void measure_start(const Plan& plan, Report& report);
void measure_client(const Plan& plan, Report& report);
void measure_evidence(const Plan& plan, Report& report);
void measure_pages(const Plan& plan, Report& report);
void measure_logs(const Plan& plan, Report& report);
void measure_questions(const Plan& plan, Report& report);
void measure_python(const Plan& plan, Report& report);

// Returns how often an idle server may wake in that time: its sweeps.
double housekeeping_beats(std::chrono::duration<double> watched);

// The server of the large table keeps running, so that its idle wakeups are counted during other
// measurements.
class LargeTable {
 public:
  LargeTable(const Plan& plan, Report& report);
  ~LargeTable();
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same for open scopes on pages.
class IdlePages {
 public:
  IdlePages(const Plan& plan, Report& report);
  ~IdlePages();
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace filetimer::bench
