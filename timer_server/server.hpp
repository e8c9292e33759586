// The server: stitches the parts together and owns the event loop.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "timer_server/command_supervisor.hpp"
#include "timer_server/control/control_requests.hpp"
#include "timer_server/control/life_cycle.hpp"
#include "timer_server/core.hpp"
#include "timer_server/inbox.hpp"
#include "timer_server/kills/commands.hpp"
#include "timer_server/kills/kills.hpp"
#include "timer_server/kills/warnings.hpp"
#include "timer_server/status_report.hpp"
#include "timer_server/system/service_manager.hpp"
#include "timer_server/watch/deadline_scan.hpp"
#include "timer_server/watch/lost_time.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {

// One server of a runtime directory. Each part has its own state and does not know the server; the
// server calls the parts in the order that run_once() shows. Everything runs on the thread that
// calls run(), except what the parts give to their own threads.
//
//   Server server(settings, directory);
//   std::puts(server.ready_line().c_str());
//   return server.run();
class Server {
 public:
  // Begins to serve, and adopts what an earlier server has left. `directory` must outlive the
  // server.
  Server(Settings settings, RuntimeDirectory& directory);

  [[nodiscard]] std::string ready_line() const;
  // Starts COMMAND. Fails with the errno of execve().
  Status start_command();
  // Returns the exit status, when the server was asked to stop or COMMAND has ended.
  int run();
  // Removes the request pipe and records the stop. Called instead of run() if COMMAND cannot be
  // started.
  void withdraw();

 private:
  // The iteration, in this order.
  void run_once();
  void read_progress(const MissedTime::Clocks& woke);
  void judge(Instant woke);
  Instant carry_out(Instant woke);
  void sleep_until(Instant next) {
    missed_time_.on_sleep(next, scan_.looks().tolerated, MissedTime::Clocks::read());
    timer_->arm(next);
  }

  Instant iterate();
  void run_once_guarded();
  void take_over();  // what an earlier server has left
  void give_back_missed_time(const MissedTime::Clocks& woke);
  void report_given_time(Duration given, std::size_t scopes, const std::string& reason);
  void sweep(Instant now);
  void write_metrics();
  void check_directory();
  void on_worker_removed(Worker& worker);
  void report_rejections(Instant now, bool force);

  // The end.
  void on_signal(int signal, bool is_from_terminal);
  void advance_life(Instant now);
  void act(LifeCycle::Action action, const std::string& why, int signal = SIGTERM,
           bool is_from_terminal = false);
  void begin_stop(const std::string& why);
  void read_last_requests();

  ServerStatus status();

  // Each part is declared after those that it uses.
  Core core_;
  const ClockReading started_ = ClockReading::now();
  LifeCycle life_;
  CommandSupervisor children_;
  ServiceManager service_manager_;
  KillPath kill_path_;

  MissedTime missed_time_;
  WatchRegistry registry_;
  ControlRequests control_;
  Inbox inbox_;

  HaltedWorkers halted_;
  DeadlineScan scan_;
  Commands commands_;
  Warnings warnings_;
  Kills kills_;

  MetricsFile metrics_file_;

  Instant next_sweep_;
  bool has_failed_ = false;  // the last iteration or the begin of a kill, perhaps after verdicts
  std::string stop_reason_ = "COMMAND ended";
  int stop_signal_ = 0;  // the last SIGTERM or SIGINT; 0: none came
  std::vector<EventSource> sources_;
  EventSource timer_;
};

}  // namespace filetimer
