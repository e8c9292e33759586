// The server: one loop thread on sd-event that owns every timer. See turn() for the rule of the
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

#include "timer_server/command.hpp"
#include "timer_server/event_loop.hpp"
#include "timer_server/halted.hpp"
#include "timer_server/hooks.hpp"
#include "timer_server/inheritance.hpp"
#include "timer_server/kill_ladder.hpp"
#include "timer_server/kill_path_check.hpp"
#include "timer_server/oversleep.hpp"
#include "timer_server/pages/board_file.hpp"
#include "timer_server/pages/ended_statistics.hpp"
#include "timer_server/pages/page_folder.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/past_verdicts.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"
#include "timer_server/requests/askers.hpp"
#include "timer_server/requests/rejections.hpp"
#include "timer_server/requests/rendezvous.hpp"
#include "timer_server/requests/reply_folder.hpp"
#include "timer_server/requests/request_pipe.hpp"
#include "timer_server/requests/request_reader.hpp"
#include "timer_server/service_manager.hpp"
#include "timer_server/settings.hpp"
#include "timer_server/side_threads.hpp"
#include "timer_server/timer_table.hpp"
#include "timer_server/warnings.hpp"

namespace filetimer {

// What the server has opened before it serves; made by start_up().
struct Premises {
  std::string dir;
  std::string log_path;
  RequestPipe pipe;
  std::unique_ptr<RecordLog> log;
  BoardFile board;
  PageFolder pages;
  ReplyFolder replies;
  // Makes the run folder, its lock and what belongs into it again where somebody removed one of
  // them. Gives what is new; nothing when all was in place.
  struct Restored {
    std::optional<BoardFile> board;  // null: the board was in place
    PageFolder pages;
    ReplyFolder replies;
  };
  std::function<Result<std::optional<Restored>>()> restore_folder;
};

class Server final : private RequestSink {
 public:
  // `inheritance`: what children are to have in place of what this process has made of itself.
  Server(Settings settings, Premises premises, Inheritance inheritance);
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
  void iterate();
  std::size_t read_requests() { return read_requests(pipe_.capacity()); }
  std::size_t read_requests(std::size_t most);  // bytes
  void take_last_words();
  void bury_the_dead();
  void judge(Instant woke);
  void arm(Instant next);
  void sweep(Instant now);
  bool may_end(Instant now);

  // Requests.
  void on_request(const wire::Request& request, std::string_view line) override;
  void on_rejected(std::string_view reason, std::string_view line) override;
  void handle(const wire::Request& request, std::string_view line);
  void acquire(const wire::Request& request, std::string_view line);
  void release(const wire::Request& request);
  Result<Worker*> worker_of(pid_t pid);
  Result<Worker*> admit(pid_t pid);
  Result<Worker*> watch(Process process);
  ScopeTerms terms_of(const wire::Request& request, const Worker& worker, std::string_view name);
  void tell_cut(const Worker& worker, std::string_view name, Duration asked);
  void report_rejections(Instant now, bool force);

  // Questions (server_questions.cpp).
  struct Asked {
    Askers::Id asker = 0;
    const wire::Question& question;
    pid_t pid = 0;
    Duration granted{};
  };
  void on_question(const wire::Request& request, std::string_view line);
  bool fits_in_turn();
  void take_up_questions();
  void consider(const wire::Request& request, std::string_view line);
  void answer(const Asked& asked);
  void answer_ping(const Asked& asked);
  void answer_status(const Asked& asked);
  void answer_drain(const Asked& asked);
  void answer_shutdown(const Asked& asked);
  void answer_rendezvous(const Asked& asked);
  bool grant(const Asked& asked);
  void leave_rendezvous(Askers::Id asker);
  void refuse_rounds(std::string_view reason);
  void look_after_replies();
  void on_withdrawn(Askers::Id asker);
  void look_after_askers(Instant now);
  void look_after_expected(Instant now);
  void look_after_shutdown(Instant now);
  void shut_down(const char* why, bool forced);
  void tell_stopped();
  void tell_joined(const Rendezvous::Round& round, const std::string& answer);
  [[nodiscard]] Announcement announcement() const;
  [[nodiscard]] bool is_draining() const;
  void announce();
  std::size_t count_open();
  void write_open(JsonWriter& json, bool with_workers, std::size_t room);

  // Pages (server_pages.cpp).
  // A scope whose deadline has passed, and where it stands: in the table, or on a page.
  struct DueScope {
    Worker* worker = nullptr;
    Instant deadline;
    Scope* scope = nullptr;
    PageVerdict on_page;
  };
  void on_page_hint(std::string_view name);
  void look_at_page(const std::string& name);
  Result<Worker*> owner_of(WorkerPage& page);
  void drop_pages_of_other_programs(Worker& worker);
  void wait_for_end(const std::string& name, Process process);
  void put_away(const PageClaims& claims, pid_t pid, const std::vector<SlotReading>& scopes,
                std::string_view reason);
  void put_away_page(WorkerPage& page, std::string_view reason);
  void adopt_pages();
  void look_for_pages();
  void resume_kills();
  void recall_idleness(const PastVerdict& verdict);
  void settle_judged_slots(const Worker& worker, const std::shared_ptr<WorkerPage>& page);
  PastVerdict* past_verdict(pid_t pid, std::uint64_t start_time, const SlotReading& scope);
  void resume_kill(pid_t pid, std::uint64_t start_time, const std::vector<PastVerdict*>& verdicts);
  void scan_pages(Instant woke, std::vector<DueScope>& due);
  bool take_due(Worker& worker, const std::shared_ptr<WorkerPage>& page,
                const std::vector<WorkerPage::Due>& candidates, std::vector<DueScope>& due);
  void judge_idleness(Worker& worker, const WorkerPage::Activity& on_pages, Instant woke,
                      std::vector<DueScope>& due);
  bool has_come_back(pid_t pid, Instant since);
  bool was_released(const Process& worker, const Expiry& expiry);
  void tell_cuts(const Worker& worker, WorkerPage& page);
  void tell_ended_threads(const std::string& name);
  void drop_page(Worker& worker, const WorkerPage& page, std::string_view reason);
  void adopt_wire_page(pid_t pid);
  void keep(const Worker& worker);
  void save_pages();
  ScopeView view_of(const SlotReading& reading) const;
  std::optional<Expiry> expiry_on_page(const DueScope& due);

  // Patience (server_patience.cpp).
  struct Halt {
    std::shared_ptr<const Process> process;
    std::string why;
    Instant since;  // seen first
    bool is_recorded = false;
  };
  bool puts_off(Worker& worker, const ScopeView& scope);
  bool puts_off_pipe(Worker& worker, const std::vector<const DueScope*>& due);
  bool puts_off_page(Worker& worker, WorkerPage& page, const std::vector<WorkerPage::Due>& due);
  Halt& note_halt(const Worker& worker, const std::string& why);
  void goes_on(Worker& worker, const Halt& halt);
  void look_at_halted(Instant now);
  void look_for_halted();
  void make_up_for_oversleep(const Oversleep::Clocks& woke);
  // Soft deadlines (server_warnings.cpp).
  // On a page; one of the pipe stands in the table.
  struct SoftDueSlot {
    std::shared_ptr<const Process> process;  // its worker's
    std::shared_ptr<WorkerPage> page;
    WorkerPage::Due slot;
  };
  void note_soft_due(const Worker& worker, const std::shared_ptr<WorkerPage>& page,
                     const std::vector<WorkerPage::Due>& slots);
  void warn(Instant woke);
  Warnings::Scope warning_of(const Scope& scope, Instant soft);
  std::optional<Warnings::Scope> warning_on_page(const SoftDueSlot& due) const;
  std::string reason_of(const ScopeTerms& terms) const;
  void recall_warnings(const PastWarnings& past);

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
  void look_after_folder();
  void look_after_pipe();
  void listen();
  void tell_log_news(Instant now);
  void on_signal(int signal, bool from_terminal);
  void begin_stop(const char* why);
  void record_start();
  void write_settings(JsonWriter& json) const;
  void write_standing(JsonWriter& json) const;
  void record_stop();

  EventSource add_io(int fd, int64_t priority, std::function<void()> handler);
  void on_log_event();
  void on_side_event();

  // COMMAND, hooks, and whoever becomes our child (server_children.cpp).
  void on_command_ended();
  void look_after_children(Instant now);
  void force_end(std::string_view why);
  void kill_all_of_command();
  void run_hook(const KillOrder& order, const KillEnd& end);

  const Settings settings_;
  const std::string dir_;
  const std::function<Result<std::optional<Premises::Restored>>()> restore_folder_;
  RequestPipe pipe_;
  std::unique_ptr<RecordLog> log_;
  // The one that clients find now at the back; those before it are of run folders that were removed
  // and stay for the clients that have mapped them.
  std::vector<BoardFile> boards_;
  PageFolder page_folder_;
  ReplyFolder reply_folder_;
  std::unique_ptr<EndedStatistics> ended_statistics_;
  Records records_;
  Hooks hooks_;
  SideThreads side_threads_;
  KillLadder ladder_;
  const std::uint32_t warn_at_;  // as the board has it
  TimerTable table_;
  Warnings warnings_;
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

  Oversleep oversleep_;
  std::unordered_map<pid_t, Halt> halted_;  // workers
  Instant next_halt_look_ = Instant::never();

  std::shared_ptr<Incident> incident_;
  std::unordered_set<std::string> cut_names_;  // scopes whose cut timeout was recorded
  std::vector<std::shared_ptr<const Process>> unkillable_;
  std::string pipe_trouble_;    // as last told
  std::string folder_trouble_;  // as last told
  Instant next_sweep_;
  std::uint64_t requests_ = 0;
  std::uint64_t expired_ = 0;
  std::uint64_t killed_ = 0;
  const Instant started_ = Instant::now();
  KillPath kill_path_;
  ServiceManager service_manager_;

  const char* stopping_ = nullptr;  // why; null: not
  Instant stop_by_ = Instant::never();
  bool is_told_to_end_ = false;  // by a signal or a shutdown; COMMAND may still be running
  bool was_signalled_ = false;
  bool is_withdrawn_ = false;  // clients are no longer told of anything
  bool is_drain_asked_ = false;
  struct ShutdownAsker {
    Askers::Id asker = 0;
    Instant until;
    bool then_forced = false;
    bool waits_for_workers = false;
  };
  std::vector<ShutdownAsker> shutdown_askers_;
  Instant next_shutdown_look_ = Instant::never();
  Instant next_waiting_told_;
  Rendezvous rendezvous_;
  std::size_t considered_ = 0;  // questions, in this turn
  Instant considered_since_;    // the first of them
  // Questions beyond those of one turn, as lines.
  std::deque<std::string> questions_;
  wire::Parser question_parser_;
  // --expect-workers: those that have shown up.
  std::vector<WorkerIdentity> arrived_;
  Instant join_by_ = Instant::never();  // never: nobody is expected any more
  std::optional<int> command_status_;
  Instant reap_again_ = Instant::never();  // when to ask for it; never: it has not ended
  Instant reap_strangers_at_;              // never: at the next SIGCHLD
  bool forced_ = false;                    // COMMAND and what it started are being killed
  bool all_killed_ = false;                // they are gone
  Instant ending_by_ = Instant::never();   // all is done but for hooks, which have until then

  // Declared last: gone first, so no handler runs on what is gone already.
  EventLoop loop_;
  std::optional<Askers> askers_;
  EventSource timer_;
  EventSource pipe_source_;
  EventSource command_source_;
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
