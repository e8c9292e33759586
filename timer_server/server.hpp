// The server: one loop thread on sd-event that owns every timer. See turn() for the rule of the
// product in one screen.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "timer_server/command.hpp"
#include "timer_server/event_loop.hpp"
#include "timer_server/kill_ladder.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/rejections.hpp"
#include "timer_server/request_pipe.hpp"
#include "timer_server/request_reader.hpp"
#include "timer_server/settings.hpp"
#include "timer_server/side_threads.hpp"
#include "timer_server/timer_table.hpp"

namespace filetimer {

// What the server has opened before it serves; made by start_up().
struct Premises {
  std::string dir;
  std::string log_path;
  RequestPipe pipe;
  std::unique_ptr<RecordLog> log;
  // Makes the run folder again, and its lock, after somebody removed it.
  std::function<Status()> restore_folder;
};

class Server final : private RequestSink {
 public:
  Server(Settings settings, Premises premises);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::string ready_line() const;
  // From now on the server lives as long as `command`, and hands its signals on.
  void attend(Command command);
  // Serves until told to stop, or until COMMAND has ended. Gives the exit status.
  int run();
  // Instead of run(), when COMMAND could not be started: takes the pipe away again.
  void withdraw();

 private:
  // The loop.
  void turn();
  void read_requests();
  void bury_the_dead();
  void judge(Instant woke);
  void arm(Instant next);
  void sweep(Instant now);
  bool may_end(Instant now);

  // Requests.
  void on_request(const wire::Request& request, std::string_view line) override;
  void on_rejected(std::string_view reason, std::string_view line) override;
  void acquire(const wire::Request& request, std::string_view line);
  void release(const wire::Request& request);
  Result<Worker*> worker_of(pid_t pid);
  Result<Worker*> admit(pid_t pid);
  ScopeTerms terms_of(const wire::Request& request, const Worker& worker, std::string_view name);
  void report_rejections(Instant now, bool force);

  // Workers and verdicts.
  void bury(Worker& worker);
  void expire(Worker& worker, const std::vector<Scope*>& due);
  std::shared_ptr<Incident> incident_now();
  std::vector<std::string> on_signal_due(const Process& process, bool is_final);
  void on_kill_ended(const KillOrder& order, KillVerdict verdict);

  // The pipe's place, the log's state, signals, the end.
  void look_after_pipe();
  void listen();
  void tell_log_news(Instant now);
  void on_signal(int signal, bool from_terminal);
  void begin_stop(const char* why);
  void record_start() const;
  void record_stop();

  EventSource add_io(int fd, int64_t priority, std::function<void()> handler);
  void on_log_event();
  void on_side_event();
  void on_command_ended();
  void reap_command(Instant now);

  const Settings settings_;
  const std::string dir_;
  const std::function<Status()> restore_folder_;
  RequestPipe pipe_;
  std::unique_ptr<RecordLog> log_;
  Records records_;
  SideThreads side_threads_;
  KillLadder ladder_;
  TimerTable table_;
  RequestReader reader_;
  Rejections rejections_;
  std::optional<Command> command_;

  // What the present reading of the pipe knows.
  ClockReading now_;
  std::uint64_t batch_ = 0;
  std::unordered_map<pid_t, Error> refused_in_batch_;
  std::vector<pid_t> dead_;                // workers whose end woke us
  std::unordered_set<pid_t> ended_;        // workers that ended since the last sweep or so
  Instant read_again_ = Instant::never();  // during a flood: when to read next

  std::shared_ptr<Incident> incident_;
  std::unordered_set<std::string> cut_names_;  // scopes whose cut timeout was recorded
  std::vector<std::shared_ptr<const Process>> unkillable_;
  std::string pipe_trouble_;  // as last told
  Instant next_sweep_;
  std::uint64_t requests_ = 0;
  std::uint64_t expired_ = 0;
  std::uint64_t killed_ = 0;

  const char* stopping_ = nullptr;  // why; null: not
  Instant stop_by_ = Instant::never();
  bool draining_ = false;
  std::optional<int> command_status_;
  Instant reap_again_ = Instant::never();  // when to ask for it; never: it has not ended

  // Declared last: gone first, so no handler runs on what is gone already.
  EventLoop loop_;
  EventSource timer_;
  EventSource pipe_source_;
  EventSource command_source_;
  std::vector<EventSource> sources_;
  std::unordered_map<pid_t, EventSource> deaths_;  // by worker
};

}  // namespace filetimer
