// SPDX-License-Identifier: MIT
#include "timer_server/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/duration_text.hpp"
#include "common/run_folder.hpp"
#include "timer_server/evidence/proc_evidence.hpp"
#include "timer_server/recovery.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// How long the log may take to reach the disk when all else has ended.
constexpr Duration kLastSyncLimit = std::chrono::seconds{2};
// When the next iteration comes after one that threw an exception, or left something undone.
constexpr Duration kAfterFailure = std::chrono::milliseconds{100};
// A look whether a worker is halted takes less.
constexpr Duration kLookTime = std::chrono::microseconds{60};
constexpr std::string_view kEndedInside = "the worker ended inside the scope";

Settings prepared(Settings settings) {
  if (!settings.metrics.empty()) {
    settings.metrics = absolute_path(settings.metrics);
  }
  if (settings.kill.evidence != EvidenceLevel::kNone) {
    settings.drop_ins = find_drop_ins(drop_in_folders(settings.evidence_dir));
  }
  return settings;
}

constexpr std::array kSignals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};

}  // namespace

Server::Server(Settings settings, RuntimeDirectory& directory)
    : core_{prepared(std::move(settings)), directory},
      life_(core_.settings.command.empty() ? LifeCycle::Kind::kAlone
                                           : LifeCycle::Kind::kAroundCommand),
      registry_(
          core_, [this](Worker& worker) { on_worker_removed(worker); },
          [this](const Worker& worker, std::string_view reason) {
            warnings_.flush(worker.process.get(), reason);
          }),
      control_(
          core_, life_,
          {.publish = [this](Announcement what) { core_.directory.status_page().announce(what); },
           .write_status =
               [this](JsonWriter& json) { write_status(json, core_, status(), kill_path_); }}),
      inbox_(core_, registry_, control_, life_),
      halted_(core_),
      scan_(core_, halted_),
      commands_(core_),
      warnings_(core_, commands_),
      kills_(core_, warnings_, commands_),
      metrics_file_(core_.settings.metrics, core_.side_threads),
      next_sweep_(started_.mono + core_.settings.max_interval) {
  inbox_.listen();
  control_.listen(core_.directory.take_control_socket());
  sources_.push_back(
      watch_io(core_.loop, core_.log->event_fd(), EPOLLIN | EPOLLET, kOrdinary, [] {}));
  sources_.push_back(watch_io(core_.loop, core_.side_threads.event_fd(), EPOLLIN, kOrdinary,
                              [this] { core_.side_threads.deliver(); }));
  timer_ = make_timer(core_.loop, kDeadlines, [] {});
  sources_.push_back(watch_signals(core_.loop, kSignals, [this](const signalfd_siginfo& info) {
    on_signal(static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL);
  }));
  core_.directory.status_page().serve();
  try {
    take_over();
  } catch (...) {
    (void)core_.log->drain(kLastSyncLimit);  // the pages of these records have been removed
    throw;
  }
}

void Server::take_over() {
  kill_path_ = check_kill_path();
  Recovery recovery(core_, registry_, kills_);
  const std::size_t adopted_scopes = recovery.adopt();
  core_.log->append(start_record(core_, kill_path_, adopted_scopes, registry_.orphaned_scopes()));
  recovery.resume_kills();
  write_metrics();
  if (core_.directory.pipe().outlives_server()) {
    check_directory();  // it may have been removed while no server was running
  }
}

std::string Server::ready_line() const {
  return fmt::format("ready dir={} fifo={} log={} pid={}", core_.directory.path(),
                     core_.directory.pipe().path(), core_.log->path(), ::getpid());
}

Status Server::start_command() {
  Status started = children_.start(core_.settings.command, core_.directory.path(),
                                   core_.directory.pipe().path());
  stop_reason_ = started ? stop_reason_ : started.error().message;
  return started;
}

int Server::run() {
  service_manager_.start_keep_alives(core_.loop);
  service_manager_.notify_status(core_.workers.count(), core_.counters.killed.total());
  timer_->arm(Instant{});  // the first iteration
  core_.loop.run([this] { run_once_guarded(); });
  withdraw();
  if (children_.pid() != 0) {
    // Without an exit status COMMAND was killed by force and has not exited yet.
    return children_.exit_status().value_or(128 + SIGKILL);
  }
  return kills_.unkillable() > 0 ? exit_status::kUnkillable : exit_status::kStopped;
}

// ---------------------------------------------------------------------------------------------

// The rule of the product: read all evidence of progress, judge, then carry out the verdicts. It
// runs after each event: whatever wakes the loop - a request, a deadline, a synced record, an exit
// - is followed by one iteration. Handlers of events only note what has happened. At a deadline
// that is near a second one follows, without a sleep between them.
void Server::run_once() {
  Instant next = iterate();
  if (next == scan_.next() && next > Instant::now() &&
      next - Instant::now() <= DeadlineScan::kLead) {
    missed_time_.on_sleep(next, scan_.looks().tolerated, MissedTime::Clocks::read());
    while (Instant::now() < next) {
    }
    next = iterate();
  }
  if (life_.phase() == LifeCycle::Phase::kEnded) {
    core_.loop.stop();
    return;
  }
  sleep_until(next);
}

Instant Server::iterate() {
  const MissedTime::Clocks woke = MissedTime::Clocks::read();
  read_progress(woke);
  if (life_.judges()) {
    judge(woke.now);
  }
  return carry_out(woke.now);
}

void Server::read_progress(const MissedTime::Clocks& woke) {
  inbox_.read();
  scan_.want_before(inbox_.take_earliest_deadline(), woke.now);
  scan_.want_looks_for(inbox_.take_shortest_timeout(), woke.now);
  registry_.remove_exited_workers();
  if (inbox_.take_was_full()) {
    registry_.look_after_full_pipe();
  }
  give_back_missed_time(woke);
  core_.workers.save_pages();
}

// Judges by the time at which the loop woke: a release before that time has been read. A deadline
// that has passed since is judged in the next iteration, which follows at once.
void Server::judge(Instant woke) {
  if (scan_.next() > woke) {
    return;
  }
  if (has_failed_) {
    kills_.take_back_lost_verdicts();
  }
  DeadlineScan::Found found = scan_.run(woke, next_sweep_);
  warnings_.note(std::move(found.soft));
  // Before anything else that may fail.
  has_failed_ = !kills_.carry_out(found, ClockReading::now());
  for (const DeadlineScan::LostPage& lost : found.lost) {
    if (registry_.has(*lost.page)) {
      registry_.remove_page(*lost.worker, *lost.page,
                            lost.is_of_another_program ? WatchRegistry::kStartedAnother : "");
    }
  }
  if (found.unseen_for > Duration::zero()) {
    report_given_time(found.unseen_for, found.unseen_scopes,
                      fmt::format("the server had not seen a scope for {}",
                                  duration_for_reading(found.unseen_for)));
  }
  const Instant look = halted_.next_look_at_all(scan_.looks().pause);
  if (woke >= look) {
    halted_.look_at_all(woke);
  } else {
    scan_.want_by(look);
  }
  kills_.sample(found.soon, woke);
  if (has_failed_) {
    scan_.want_by(woke + kAfterFailure);
  } else if (found.next != nullptr && !found.due.empty()) {
    core_.wants_scan = true;  // in the next iteration: now signals wait
  } else if (found.next != nullptr) {
    HaltedWorkers::look_ahead(*found.next);
    kills_.rehearse(*found.next);
    for (Worker* const worker : found.close) {
      if (worker != found.next && Instant::now() + kLookTime < scan_.next()) {
        HaltedWorkers::look_ahead(*worker);
      }
    }
  }
  if (core_.directory.status_page().was_cut()) {
    check_directory();
  }
}

// Returns when a part must be advanced again.
Instant Server::carry_out(Instant woke) {
  const Instant now = Instant::now();
  report_rejections(now, false);
  if (children_.advance(now)) {
    act(life_.handle(LifeCycle::Event::kCommandEnded, now), "COMMAND ended");
  }
  halted_.advance(now);
  core_.desk.advance(now);
  commands_.end_commands(now);  // kills wait for the ends of evidence commands
  Instant next = kills_.advance(now, woke);
  scan_.want_looks_for(kills_.shortest_grace(), now);  // so a pause in it is noticed
  warnings_.warn();
  if (const auto shutdown = control_.advance(now, !kills_.idle())) {
    messages::info("{}", shutdown->why);
    const auto event =
        shutdown->is_forced ? LifeCycle::Event::kForcedShutdown : LifeCycle::Event::kShutdown;
    act(life_.handle(event, now), shutdown->why);
    next = now;  // the kills' waits are shorter
  }
  advance_life(now);
  if (now >= next_sweep_) {
    sweep(now);  // behind advance_life(): the server does not end before a scan that is wanted
  }
  next = std::min(next, warnings_.advance(now));
  // Behind what appends records, and before the hooks, which do not wait for a log that fails.
  next = std::min(next, core_.log->note_stall(now));
  next = std::min(next, commands_.start_hooks(now));
  if (commands_.have_hooks_ended()) {
    (void)life_.handle(LifeCycle::Event::kHooksDone, now);
  }
  if (life_.judges()) {
    next = std::min(next, scan_.next());
  }
  if (registry_.has_exited_workers()) {
    next = std::min(next, now + kAfterFailure);
  }
  return std::min({next, next_sweep_, core_.desk.next(), inbox_.next(), halted_.next(),
                   core_.rejections.next_report(), children_.next(), control_.next(),
                   life_.next()});
}

// After an exception the next iteration comes soon, and judges all that this one was to judge.
void Server::run_once_guarded() {
  try {
    run_once();
  } catch (...) {
    has_failed_ = true;
    core_.wants_scan = true;
    sleep_until(Instant::now() + kAfterFailure);
    throw;
  }
}

// ---------------------------------------------------------------------------------------------

// Gives open scopes the time back in which the server could not run: it woke later than planned, or
// it finds what should have woken it before. The requests of that time have been read: their scopes
// began in it.
void Server::give_back_missed_time(const MissedTime::Clocks& woke) {
  const Duration late = missed_time_.on_wake(woke);
  const Instant late_since = late > Duration::zero() ? woke.now + -late : Instant::never();
  const Instant begun = std::min(late_since, inbox_.waited_since());
  if (begun.is_never()) {
    return;
  }
  const auto now = MissedTime::Clocks::read();  // the server may have been stopped since it woke
  missed_time_.on_given_back(now);
  const Instant since = std::min(begun, woke.now);
  inbox_.antedate_requests(since);
  const Duration missed = core_.lost.add(since, now.now);
  core_.wants_scan = true;
  kills_.extend_grace(missed);
  if (missed <= Looks::kLeastTolerated) {
    return;  // the last iteration has reported it
  }
  const std::string length = duration_for_reading(missed);
  const std::string reason = begun == late_since
                                 ? fmt::format("the server woke {} later than planned", length)
                                 : fmt::format("the server could not run for {}", length);
  report_given_time(missed, core_.workers.count_open_scopes(), reason);
}

void Server::report_given_time(Duration given, std::size_t scopes, const std::string& reason) {
  if (scopes > 0) {
    core_.log->append_detail(core_.records.deferred_all(given, scopes, reason));
    ++core_.counters.deferred_all;
  }
  messages::warning("{}, while {} scope{} open", reason, scopes, scopes == 1 ? " was" : "s were");
}

// Looks at everything that no event announces.
void Server::sweep(Instant now) {
  next_sweep_ = now + core_.settings.max_interval;
  core_.side_threads.start_threads();
  check_directory();
  // Pages in a directory that another server has taken are that server's.
  const bool has_directory = core_.directory.has_status_page();
  if (has_directory) {
    registry_.forget_orphaned_scopes();
    registry_.look_for_pages();
  }
  inbox_.retry();
  halted_.look_at_all(now);
  core_.workers.for_each([&](const Worker& worker) {
    if (worker.pipe && has_directory) {
      worker.pipe->note_if_removed();
    }
    core_.workers.note_unsaved(worker);
  });
  core_.wants_scan = true;  // in the next iteration, which follows at once
  service_manager_.notify_status(core_.workers.count(), core_.counters.killed.total());
  write_metrics();
}

void Server::write_metrics() {
  if (metrics_file_.is_ready()) {
    metrics_file_.write(metrics_text(status(), FILETIMER_VERSION, true));
  }
}

void Server::check_directory() {
  if (core_.directory.restore()) {
    core_.directory.status_page().announce(control_.announcement());
    control_.accept_all();  // the clients of the old socket
    inbox_.read();          // what they have written before they asked
    control_.listen(core_.directory.take_control_socket());
    core_.wants_scan = true;
  }
  if (core_.directory.is_pipe_gone()) {
    inbox_.read();  // what was written before the old pipe is closed
    inbox_.stop_listening();
    core_.directory.restore_pipe();
    inbox_.listen();
    core_.wants_scan = true;
  } else if (core_.directory.pipe().condition() == RequestPipe::Condition::kTakenOver) {
    // The other process gets the releases, so these scopes must not be judged when it has ended.
    core_.workers.for_each([](const Worker& worker) {
      if (worker.pipe && !worker.has_kill()) {
        (void)worker.pipe->cancel_all();
        worker.pipe->end_cancelled();
      }
    });
  }
}

void Server::on_worker_removed(Worker& worker) {
  kills_.note_worker_ended(*worker.process);
  warnings_.flush(worker.process.get(), "the worker ended first");
  // The scopes of a worker that was killed have ended with the kill.
  registry_.remove_pages(worker, worker.is_dying() ? "" : kEndedInside);
  core_.kill_files.forget(*worker.process);
}

void Server::report_rejections(Instant now, bool force) {
  if (const auto report = core_.rejections.take(now, force)) {
    core_.log->append_detail(core_.records.rejected(*report));
    messages::warning("{} request{} rejected, the last one because: {}", report->count,
                      report->count == 1 ? "" : "s", report->reason);
  }
}

// ---------------------------------------------------------------------------------------------

void Server::on_signal(int signal, bool is_from_terminal) {
  if (signal == SIGCHLD) {
    children_.note_child_ended();
    return;
  }
  messages::debug("got {}", signal_name(signal));
  if (signal == SIGTERM || signal == SIGINT) {
    const bool again = life_.asked() == LifeCycle::Asked::kBySignal;
    const bool is_other = std::exchange(stop_signal_, signal) != signal;
    const LifeCycle::Action action = life_.handle(LifeCycle::Event::kSignal, Instant::now());
    act(action, fmt::format("{}{}", again ? "a second " : "", signal_name(signal)), signal,
        is_from_terminal);
    if (action == LifeCycle::Action::kNone && is_other && children_.pid() != 0) {
      children_.forward(signal, is_from_terminal);  // COMMAND may ignore the one before
    }
  } else if (children_.pid() != 0) {
    children_.forward(signal, is_from_terminal);
  } else if (signal == SIGHUP) {
    core_.log->reopen();
  }
}

void Server::advance_life(Instant now) {
  const bool has_more = life_.judges() && core_.wants_scan;  // to judge in the next iteration
  if (kills_.idle() && !has_more && children_.is_done_killing()) {
    (void)life_.handle(LifeCycle::Event::kKillsDone, now);
  }
  life_.advance(now);
  if (life_.phase() == LifeCycle::Phase::kFinishingHooks) {
    kills_.abandon();  // the time for kills is up; it has failed before, perhaps
  }
}

// `why` goes into the record of the stop, `signal` to a COMMAND that is to end.
void Server::act(LifeCycle::Action action, const std::string& why, int signal,
                 bool is_from_terminal) {
  switch (action) {
    case LifeCycle::Action::kNone:
      break;
    case LifeCycle::Action::kAskCommandToEnd:
      children_.forward(signal, is_from_terminal);
      children_.forward(SIGCONT, false);  // a stopped process acts on no other signal
      break;
    case LifeCycle::Action::kFinishKills:
      begin_stop(why);
      break;
    case LifeCycle::Action::kKillCommand:
      messages::warning("{}: killing COMMAND", why);
      children_.kill();
      begin_stop("forced");
      break;
  }
  core_.directory.status_page().announce(control_.announcement());
}

void Server::begin_stop(const std::string& why) {
  service_manager_.notify_stopping();
  stop_reason_ = why;
  kills_.shorten_waits(Instant::now());
}

void Server::withdraw() {
  service_manager_.notify_stopping();
  core_.directory.status_page().stop();
  core_.directory.pipe().remove_from_path();
  core_.directory.remove_control_socket();
  read_last_requests();
  warnings_.flush(nullptr, "the server was stopped first");  // adds their hooks
  commands_.stop();
  report_rejections(Instant::now(), true);
  if (core_.directory.ends_with_server()) {
    registry_.record_statistics_of_living_workers();
  }
  core_.log->append(stop_record(core_, status(), stop_reason_));
  if (!core_.log->drain(kLastSyncLimit)) {
    messages::error("the log '{}' could not be written to the end", core_.log->path());
  }
  core_.kill_files.remove_synced(core_.log->synced());
  if (metrics_file_.is_wanted()) {
    metrics_file_.write_last(metrics_text(status(), FILETIMER_VERSION, false));
  }
  if (!core_.directory.pipe().outlives_server()) {
    read_last_requests();
    inbox_.stop_listening();
    core_.directory.pipe().close();  // what is written from now on fails, and is not lost
  }
  control_.answer_stopped();
}

// Takes the requests that are left in the pipe and on the control socket: without a release among
// them the next server would kill a healthy worker. A pipe that outlives this server has writers,
// so requests that come later are read by the next server.
void Server::read_last_requests() {
  control_.accept_all();
  inbox_.read(core_.directory.pipe().waiting());
  control_.take(Instant::now());
  registry_.remove_exited_workers();
  core_.workers.save_pages();
}

ServerStatus Server::status() {
  return {.counters = core_.counters,
          .dir = core_.directory.path(),
          .started = started_,
          .now = ClockReading::now(),
          .command_pid = children_.pid(),
          .command_status = children_.exit_status(),
          .announcement = control_.announcement(),
          .workers = core_.workers.count(),
          .open_scopes = core_.workers.count_open_scopes(),
          .rejected = core_.rejections.total(),
          .kills_under_way = kills_.count(),
          .unkillable = kills_.unkillable(),
          .waiting_clients = control_.client_count(),
          .log_trouble = core_.log->failure(),
          .backlog = core_.log->backlog()};
}

}  // namespace filetimer
