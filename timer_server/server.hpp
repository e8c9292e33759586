// The server: one loop thread on sd-event that owns every timer. See run_once() for the rule of the
// product in one screen.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "timer_server/command_supervisor.hpp"
#include "timer_server/control/control_requests.hpp"
#include "timer_server/control/expected_workers.hpp"
#include "timer_server/event_loop.hpp"
#include "timer_server/given_time.hpp"
#include "timer_server/halted_workers.hpp"
#include "timer_server/hooks.hpp"
#include "timer_server/inheritance.hpp"
#include "timer_server/kill_ladder.hpp"
#include "timer_server/kill_path_check.hpp"
#include "timer_server/life_cycle.hpp"
#include "timer_server/missed_time.hpp"
#include "timer_server/pages/mapped_page.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/past_verdicts.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/requests/rejections.hpp"
#include "timer_server/requests/request_reader.hpp"
#include "timer_server/runtime_directory.hpp"
#include "timer_server/service_manager.hpp"
#include "timer_server/settings.hpp"
#include "timer_server/side_threads.hpp"
#include "timer_server/warnings.hpp"
#include "timer_server/workers.hpp"

namespace filetimer {

class Server final : private RequestSink, private ControlRequests::Host {
 public:
  // `inheritance`: the settings of the server's caller, which child processes get instead of the
  // server's own.
  // `directory` is open and outlives the server.
  Server(Settings settings, RuntimeDirectory& directory, std::unique_ptr<RecordLog> log,
         Inheritance inheritance);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::string ready_line() const;
  // The server ends when `command` ends. Signals to the server are forwarded to it.
  void supervise(Command command) { children_->supervise(std::move(command)); }
  // Serves until told to stop, or until COMMAND has ended. Gives the exit status.
  int run();
  // Removes the request pipe and records the stop. Called instead of run() when COMMAND cannot be
  // started.
  void withdraw();

 private:
  // The loop.
  void run_once();
  void run_once_guarded();
  std::size_t read_requests() { return read_requests(directory_.pipe().capacity()); }
  std::size_t read_requests(std::size_t most);  // bytes
  void take_last_words();
  void bury_the_dead();
  void judge(Instant woke);
  void arm(Instant next);
  void sweep(Instant now);
  void advance_life(Instant now);

  // Requests.
  void on_request(const wire::Request& request, std::string_view line) override;
  void on_rejected(std::string_view reason, std::string_view line) override;
  void handle(const wire::Request& request, std::string_view line);
  void acquire(const wire::Request& request, std::string_view line);
  void release(const wire::Request& request);
  Result<Worker*> worker_of(pid_t pid);
  Result<Worker*> admit(pid_t pid);
  Result<Worker*> watch(Process process);
  PipePage& pipe_page_of(Worker& worker);
  ScopeTerms terms_of(const wire::Request& request) const;
  void tell_cut(const Worker& worker, std::string_view name, Duration asked);
  void report_rejections(Instant now, bool force);

  // Control requests (server_status.cpp).
  void write_status(JsonWriter& json, Instant now) override;
  void write_open_scopes(JsonWriter& json, bool with_workers, std::size_t room) override;
  std::size_t open_scope_count() override;
  [[nodiscard]] bool has_workers() const override;
  [[nodiscard]] bool has_kills() const override;
  void announce() override;
  void note_expected(const ExpectedWorkers::Outcome& outcome, Instant now);
  void shut_down(const std::string& why, bool forced);

  // Pages (server_pages.cpp).
  // A scope on which a verdict was given.
  struct DueScope {
    Worker* worker = nullptr;
    Instant deadline;
    PageVerdict place;
  };
  void on_page_hint(std::string_view name);
  void look_at_page(const std::string& name);
  Result<Worker*> owner_of(MappedPage& page);
  void drop_pages_of_other_programs(Worker& worker);
  void wait_for_end(const std::string& name, Process process);
  void put_away(const PageClaims& claims, pid_t pid, const std::vector<SlotReading>& scopes,
                std::string_view reason);
  void put_away_page(MappedPage& page, std::string_view reason);
  void adopt_pages();
  void look_for_pages();
  void resume_kills();
  void recall_idleness(const PastVerdict& verdict);
  void settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page);
  PastVerdict* past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope);
  void resume_kill(pid_t pid, std::uint64_t start_time, const std::vector<PastVerdict*>& verdicts);
  void scan_pages(Instant woke, std::vector<DueScope>& due);
  WorkerPage::Scan scan_of(const Worker& worker, Instant now) const;
  bool take_due(Worker& worker, const std::shared_ptr<WorkerPage>& page,
                const std::vector<WorkerPage::Due>& candidates, Instant woke,
                std::vector<DueScope>& due);
  void judge_idleness(Worker& worker, const WorkerPage::Activity& activity, Instant woke,
                      std::vector<DueScope>& due);
  bool has_come_back(pid_t pid, Instant since);
  bool was_released(const Process& worker, const Expiry& expiry);
  void tell_cuts(const Worker& worker, WorkerPage& page);
  void tell_ended_threads(const std::string& name);
  void drop_page(Worker& worker, const WorkerPage& page, std::string_view reason);
  void remove_page(Worker& worker, const WorkerPage& page, std::string_view reason,
                   StatisticsByName& statistics);
  void record_end(const WorkerIdentity& worker, const StatisticsByName& statistics);
  void adopt_pipe_page(pid_t pid);
  void keep(const Worker& worker);
  void save_pages();
  ScopeView view_of(const SlotReading& reading) const;
  ScopeView view_of(const SlotReading& reading, const Worker& worker) const;
  std::optional<Expiry> expiry_of(const DueScope& due);

  // Time that a worker or the server missed (server_patience.cpp).
  bool should_defer(Worker& worker, WorkerPage& page, const WorkerPage::Due& due);
  void make_up_for_missed_time(const MissedTime::Clocks& woke);
  // Soft deadlines (server_warnings.cpp).
  struct SoftDueSlot {
    std::shared_ptr<const Process> process;  // its worker's
    std::shared_ptr<WorkerPage> page;
    WorkerPage::Due slot;
  };
  void note_soft_due(const Worker& worker, const std::shared_ptr<WorkerPage>& page,
                     const std::vector<WorkerPage::Due>& slots);
  void warn();
  std::optional<Warnings::Scope> warning_of(const SoftDueSlot& due) const;
  std::string reason_of(const ScopeTerms& terms) const;

  // Workers and verdicts.
  void bury(Worker& worker);
  std::optional<PythonDump> python_dump_of(const Worker& worker) const;
  void expire(Worker& worker, const std::vector<const DueScope*>& due);
  std::vector<ScopeView> open_scopes_of(const Worker& worker,
                                        std::size_t most = kMaxScopesPerWorker) const;
  std::shared_ptr<Incident> incident_now();
  std::vector<std::string> on_signal_due(const Process& process, bool is_final);
  void on_kill_ended(const KillOrder& order, const KillEnd& end);

  // The pipe's place, the log's state, signals, the end.
  void check_directory();
  void listen();
  void tell_log_news(Instant now);
  void on_signal(int signal, bool from_terminal);
  struct EndSignal {
    int number = SIGTERM;
    bool is_from_terminal = false;
  };
  void carry_out(LifeCycle::Action action, const std::string& why, EndSignal signal);
  void begin_stop(const std::string& why);
  void record_start();
  void write_settings(JsonWriter& json) const;
  void write_standing(JsonWriter& json) const;
  void record_stop();

  EventSource add_io(int fd, int64_t priority, std::function<void()> handler);
  void on_log_event();
  void on_side_event();

  void run_hook(const KillOrder& order, const KillEnd& end);

  const Settings settings_;
  RuntimeDirectory& directory_;
  std::unique_ptr<RecordLog> log_;
  Records records_;
  SideThreads side_threads_;
  KillLadder ladder_;
  const WorkerPage::Terms page_terms_;
  Workers workers_;
  GivenTime given_time_;
  Warnings warnings_;
  RequestReader reader_;
  Rejections rejections_;

  // What the present reading of the pipe knows.
  ClockReading now_;
  std::uint64_t batch_ = 0;
  std::unordered_map<pid_t, Error> refused_in_batch_;
  std::vector<pid_t> dead_;                // workers whose end woke us
  std::unordered_set<pid_t> ended_;        // workers that ended since the last sweep or so
  Instant read_again_ = Instant::never();  // during a flood: when to read next

  std::unordered_map<std::string, Worker*> pages_;  // by name
  std::unordered_set<std::string> refused_pages_;   // names that sweeps need not look at again
  std::vector<std::string> refused_for_now_;        // of those, the ones to be looked at again
  std::unordered_set<std::string> refused_pages_in_batch_;
  // While the server starts: what those before it have judged.
  std::vector<PastVerdict> past_;
  bool is_adopting_ = false;
  bool pages_unlooked_ = false;  // sweeps left files for the next one, or refused them for now
  std::unordered_set<std::string> hinted_pages_;  // in this reading
  std::unordered_set<pid_t> unsaved_;             // workers of the pipe whose timers have changed
  std::string save_trouble_;                      // as last told
  bool scan_wanted_ = true;
  Instant next_scan_;
  std::vector<SoftDueSlot> soft_due_;  // found by the scan of this turn
  std::size_t adopted_scopes_ = 0;
  std::size_t put_away_scopes_ = 0;

  MissedTime missed_time_;
  HaltedWorkers halted_;

  std::shared_ptr<Incident> incident_;
  std::unordered_set<std::string> cut_names_;  // scopes whose cut timeout was recorded
  std::vector<std::shared_ptr<const Process>> unkillable_;
  Instant next_sweep_;
  std::uint64_t requests_ = 0;
  std::uint64_t expired_ = 0;
  std::uint64_t killed_ = 0;
  const Instant started_ = Instant::now();
  KillPath kill_path_;
  ServiceManager service_manager_;

  LifeCycle life_;
  std::string stop_reason_ = "COMMAND ended";
  ExpectedWorkers expected_;

  // Declared last: gone first, so no handler runs on what is gone already.
  EventLoop loop_;
  std::optional<ControlRequests> control_;
  std::optional<Hooks> hooks_;
  EventSource timer_;
  EventSource pipe_source_;
  std::optional<CommandSupervisor> children_;
  std::vector<EventSource> sources_;
  std::unordered_map<pid_t, EventSource> deaths_;  // by worker
  // Pages whose worker has let go of the lock and is on its way out, or so it seems.
  struct Unclaimed {
    std::shared_ptr<Process> process;
    EventSource end;
  };
  std::unordered_map<std::string, Unclaimed> unclaimed_;
};

}  // namespace filetimer
