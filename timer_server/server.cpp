// SPDX-License-Identifier: MIT
#include "timer_server/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/soft_deadline.hpp"
#include "common/wake_protocol.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/halted.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/pages/page_guard.hpp"
#include "timer_server/past_verdicts.hpp"

namespace filetimer {
namespace {

// When all else has ended: how long the log may take to reach the disk.
constexpr Duration kLastSyncLimit = std::chrono::seconds{2};

// A flood: more than this came at once. Then each write of each writer would wake us for one line;
// instead the pipe, which can hold the work of a millisecond, is read once in a pause.
constexpr std::size_t kFloodBytes = 2048;
constexpr Duration kFloodPause = std::chrono::microseconds{200};

// After an iteration that threw an exception: when the next one comes.
constexpr Duration kAfterFailure = std::chrono::milliseconds{100};

constexpr std::array kSignals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};

}  // namespace

Server::Server(Settings settings, RuntimeDirectory& directory, std::unique_ptr<RecordLog> log,
               Inheritance inheritance)
    : settings_(std::move(settings)),
      directory_(directory),
      log_(std::move(log)),
      records_(RecordOrigin::of_this_process(directory_.path())),
      side_threads_(settings_.realtime),
      ladder_(
          settings_.kill, records_, *log_, side_threads_,
          {.was_released = [this](const Process& worker,
                                  const Expiry& expiry) { return was_released(worker, expiry); },
           .on_signal = [this](const Process& worker,
                               bool is_final) { return on_signal_due(worker, is_final); },
           .on_end = [this](const KillOrder& order,
                            const KillEnd& end) { on_kill_ended(order, end); }}),
      page_terms_{.max_timeout = settings_.max_timeout.value_or(kForever),
                  .warn_at = settings_.warn_at ? warn_at_word(*settings_.warn_at) : 0},
      warnings_(settings_.kill, records_, *log_, side_threads_),
      reader_(*this),
      now_(ClockReading::now()),
      halted_({workers_, records_, *log_, side_threads_,
               [](pid_t pid) { return why_halted(pid, is_own_helper); }}),
      next_sweep_(now_.mono + settings_.max_interval),
      life_(settings_.command.empty() ? LifeCycle::Kind::kAlone : LifeCycle::Kind::kAroundCommand),
      expected_(settings_.expect_workers, settings_.join_timeout, started_) {
  sd_event* event = nullptr;
  check_event(::sd_event_new(&event), "cannot make an event loop");
  loop_.reset(event);
  control_.emplace(event, directory_.path(), directory_.take_replies(), settings_.max_wait,
                   ControlRequests::Context{*this, life_, rejections_, records_, *log_});
  hooks_.emplace(event, settings_.on_expiry,
                 environment_for_children(directory_.path(), directory_.pipe().path()),
                 std::move(inheritance), records_, *log_);
  children_.emplace(event);
  listen();
  sources_.push_back(add_io(log_->event_fd(), kOrdinary, [this] { on_log_event(); }));
  sources_.push_back(add_io(side_threads_.event_fd(), kOrdinary, [this] { on_side_event(); }));
  sources_.push_back(watch_io(event, ladder_.death_fd(), EPOLLIN | EPOLLET, kOrdinary, [] {}));

  sd_event_source* source = nullptr;
  // Accuracy 1 us: the default would put a deadline off by up to 250 ms to save wakeups.
  check_event(::sd_event_add_time(
                  loop_.get(), &source, CLOCK_MONOTONIC, 0, 1,
                  [](sd_event_source*, uint64_t, void*) { return 0; }, nullptr),
              "cannot make a timer");
  timer_.reset(source);
  check_event(::sd_event_add_post(
                  loop_.get(), &source,
                  [](sd_event_source*, void* self) {
                    guarded([self] { static_cast<Server*>(self)->run_once_guarded(); });
                    return 0;
                  },
                  this),
              "cannot make the event source of an iteration");
  ::sd_event_source_set_priority(source, kIteration);
  sources_.emplace_back(source);
  ::sd_event_source_set_priority(timer_.get(), kDeadlines);
  for (const int signal : kSignals) {
    check_event(::sd_event_add_signal(
                    loop_.get(), &source, signal,
                    [](sd_event_source*, const signalfd_siginfo* info, void* self) {
                      guarded([self, info] {
                        static_cast<Server*>(self)->on_signal(static_cast<int>(info->ssi_signo),
                                                              info->ssi_code == SI_KERNEL);
                      });
                      return 0;
                    },
                    this),
                "cannot take signals");
    sources_.emplace_back(source);
  }
  PageGuard::install();
  directory_.serve();
  past_ = read_past_verdicts(log_->path(), records_.boot_id(), directory_.path());
  is_adopting_ = true;
  adopt_pages();
  resume_kills();
  is_adopting_ = false;
  past_ = {};
  record_start();
  if (directory_.pipe().outlives_server()) {
    check_directory();  // it may have been removed while no server was there
  }
}

Server::~Server() = default;

EventSource Server::add_io(int fd, int64_t priority, std::function<void()> handler) {
  return watch_io(loop_.get(), fd, EPOLLIN, priority, std::move(handler));
}

void Server::listen() {
  pipe_source_ = watch_io(loop_.get(), directory_.pipe().fd(), EPOLLIN | EPOLLET, kRequests, [] {});
}

std::string Server::ready_line() const {
  return fmt::format("ready dir={} fifo={} log={} pid={}", directory_.path(),
                     directory_.pipe().path(), log_->path(), ::getpid());
}

// ---------------------------------------------------------------------------------------------
// After an iteration that throws the next one comes soon, and looks at all that this one was to
// look at.
void Server::run_once_guarded() {
  try {
    run_once();
  } catch (...) {
    scan_wanted_ = true;
    pages_unlooked_ = true;
    arm(Instant::now() + kAfterFailure);
    throw;
  }
}

// The rule of the product: read all evidence of progress, judge, then carry out the verdicts.
// Whatever wakes the server - a request, a deadline, a record on disk - is followed by this:
// handlers of events only note what has happened.
void Server::run_once() {
  const MissedTime::Clocks clocks = MissedTime::Clocks::read();
  const Instant woke = clocks.now;
  control_->begin_iteration();
  read_requests();
  bury_the_dead();
  make_up_for_missed_time(clocks);
  save_pages();
  if (life_.judges()) {
    judge(woke);
  }
  const Instant now = Instant::now();
  if (now >= next_sweep_) {
    sweep(now);
  }
  report_rejections(now, false);
  if (children_->advance(now)) {
    carry_out(life_.handle(LifeCycle::Event::kCommandEnded, now), "COMMAND ended", {});
  }
  halted_.advance(now);
  scan_wanted_ = halted_.take_resumed() || scan_wanted_;
  if (const auto shutdown = control_->advance(now)) {
    shut_down(shutdown->why, shutdown->is_forced);
  }
  if (const auto outcome = expected_.advance(now)) {
    note_expected(*outcome, now);
  }
  const Instant ladder_next = ladder_.advance(now);
  warn();
  advance_life(now);
  const Instant hooks_next = hooks_->advance(now);
  const Instant warnings_next = warnings_.advance(now);
  if (!log_->is_working(now)) {
    tell_log_news(now);
  }
  if (hooks_->idle()) {
    (void)life_.handle(LifeCycle::Event::kHooksDone, now);
  }
  if (life_.phase() == LifeCycle::Phase::kEnded) {
    ::sd_event_exit(loop_.get(), 0);
    return;
  }
  Instant next = std::min({ladder_next, warnings_next, hooks_next, next_sweep_, halted_.next(),
                           rejections_.next_report(), read_again_, children_->next(),
                           control_->next(), expected_.next(), life_.next()});
  if (life_.judges()) {
    next = std::min(next, scan_wanted_ ? Instant{} : next_scan_);
  }
  arm(next);
}

// What is in the pipe now, but no more than it can hold: writers that never pause must not keep a
// deadline waiting.
std::size_t Server::read_requests(std::size_t most) {
  std::size_t read = 0;
  while (read < most) {
    std::span<char> room = reader_.room();
    room = room.first(std::min(room.size(), most - read));
    const std::size_t count = directory_.pipe().read(room);
    if (count == 0) {
      break;
    }
    ++batch_;
    refused_in_batch_.clear();
    refused_pages_in_batch_.clear();
    now_ = ClockReading::now();
    reader_.received(count);
    read += count;
    if (count < room.size()) {
      break;
    }
  }
  for (const std::string& name : std::exchange(hinted_pages_, {})) {
    tell_ended_threads(name);
  }
  const bool flood = read > kFloodBytes;
  if (flood != !read_again_.is_never()) {
    ::sd_event_source_set_enabled(pipe_source_.get(), flood ? SD_EVENT_OFF : SD_EVENT_ON);
  }
  read_again_ = flood ? Instant::now() + kFloodPause : Instant::never();
  return read;
}

// By the time at which we woke: what was released before a deadline was in the pipe by then, and
// has been read. A deadline that has come since is judged in the next turn, at once.
void Server::judge(Instant woke) {
  std::vector<DueScope> due;
  if (scan_wanted_ || next_scan_ <= woke) {
    scan_pages(woke, due);
  }
  if (due.empty()) {
    return;
  }
  now_ = ClockReading::now();
  // The worker whose deadline came first stands first; of a worker, the earliest scope.
  std::ranges::stable_sort(due, {}, &DueScope::deadline);
  std::vector<Worker*> workers;
  std::unordered_map<Worker*, std::vector<const DueScope*>> of_worker;
  for (const DueScope& scope : due) {
    std::vector<const DueScope*>& scopes = of_worker[scope.worker];
    if (scopes.empty()) {
      workers.push_back(scope.worker);
    }
    scopes.push_back(&scope);
  }
  for (Worker* worker : workers) {
    if (!worker->process->is_alive()) {
      // It ended behind the verdict: its scopes were left open.
      for (const DueScope* scope : of_worker[worker]) {
        scope->place.page->reopen(scope->place.slot, scope->place.word);
      }
      bury(*worker);
    } else {
      expire(*worker, of_worker[worker]);
    }
  }
}

void Server::arm(Instant next) {
  missed_time_.on_sleep(next, MissedTime::Clocks::read());
  if (next.is_never()) {
    ::sd_event_source_set_enabled(timer_.get(), SD_EVENT_OFF);
    return;
  }
  // Up to the next microsecond: never early.
  const std::int64_t us = (std::max<std::int64_t>(next.ns, 0) + 999) / 1000;
  ::sd_event_source_set_time(timer_.get(), static_cast<uint64_t>(us));
  ::sd_event_source_set_enabled(timer_.get(), SD_EVENT_ONESHOT);
}

void Server::sweep(Instant now) {
  next_sweep_ = now + settings_.max_interval;
  ended_.clear();
  check_directory();
  look_for_pages();
  if (settings_.stopped == Settings::Stopped::kDefer) {
    halted_.sweep();
  }
  control_->sweep();
  scan_wanted_ = true;  // in the next turn, which is at once
  tell_log_news(now);
  service_manager_.notify_status(workers_.count(), killed_);
}

void Server::advance_life(Instant now) {
  const bool judged = life_.judges();
  if (ladder_.idle() && children_->is_done_killing()) {
    (void)life_.handle(LifeCycle::Event::kKillsDone, now);
  }
  life_.advance(now);
  if (judged && !life_.judges()) {
    ladder_.abandon();  // kills whose time was up
  }
}

// ---------------------------------------------------------------------------------------------

void Server::check_directory() {
  if (directory_.restore()) {
    control_->use(directory_.take_replies());
    pages_unlooked_ = true;
    scan_wanted_ = true;
  }
  if (auto pipe = directory_.replace_pipe()) {
    read_requests();  // what was written before the old pipe goes
    pipe_source_.reset();
    directory_.use(std::move(*pipe));
    listen();
    scan_wanted_ = true;
    read_again_ = Instant::never();
  }
}

void Server::tell_log_news(Instant now) {
  bool is_good_news = false;
  const std::string news = log_->take_message(now, is_good_news);
  if (!news.empty()) {
    messages::say(is_good_news ? messages::Level::kInfo : messages::Level::kError, news);
  }
}

void Server::on_log_event() {
  log_->acknowledge();
  tell_log_news(Instant::now());
}

void Server::on_side_event() {
  side_threads_.deliver();
}

void Server::on_signal(int signal, bool from_terminal) {
  if (signal == SIGCHLD) {
    children_->note_child_ended();
    return;
  }
  messages::debug("got {}", signal_name(signal));
  if (signal == SIGTERM || signal == SIGINT) {
    const bool again = life_.asked() == LifeCycle::Asked::kBySignal;
    carry_out(life_.handle(LifeCycle::Event::kSignal, Instant::now()),
              fmt::format("{}{}", again ? "a second " : "", signal_name(signal)),
              {signal, from_terminal});
  } else if (children_->command()) {
    children_->command()->forward(signal, from_terminal);
  } else if (signal == SIGHUP) {
    log_->reopen();
  }
}

// `why` goes into the record of the stop.
void Server::carry_out(LifeCycle::Action action, const std::string& why, EndSignal signal) {
  switch (action) {
    case LifeCycle::Action::kNone:
      break;
    case LifeCycle::Action::kAskCommandToEnd:
      children_->command()->forward(SIGTERM, false);
      break;
    case LifeCycle::Action::kPassSignalOn:
      children_->command()->forward(signal.number, signal.is_from_terminal);
      break;
    case LifeCycle::Action::kFinishKills:
      begin_stop(why);
      break;
    case LifeCycle::Action::kKillCommand:
      messages::warning("{}: killing COMMAND", why);
      children_->kill();
      begin_stop("forced");
      break;
  }
  announce();
}

// A server around COMMAND ends when COMMAND ends, so a shutdown sends SIGTERM to COMMAND.
void Server::shut_down(const std::string& why, bool forced) {
  messages::info("{}", why);
  carry_out(life_.handle(forced ? LifeCycle::Event::kForcedShutdown : LifeCycle::Event::kShutdown,
                         Instant::now()),
            why, {});
}

void Server::note_expected(const ExpectedWorkers::Outcome& outcome, Instant now) {
  log_->append(records_.rendezvous(outcome.round, now, outcome.failure));
  if (outcome.failure.empty()) {
    return;
  }
  messages::error("{}", outcome.failure);
  if (settings_.missing == Settings::Missing::kStop) {
    shut_down("too few workers have shown up: stopping COMMAND", false);
  }
}

void Server::begin_stop(const std::string& why) {
  service_manager_.notify_stopping();
  stop_reason_ = why;
  ladder_.skip_grace(Instant::now());
}

int Server::run() {
  service_manager_.start_keep_alives(loop_.get());
  service_manager_.notify_ready();
  service_manager_.notify_status(workers_.count(), killed_);
  run_once_guarded();
  check_event(::sd_event_loop(loop_.get()), "the event loop failed");
  ladder_.abandon();
  withdraw();
  if (children_->command()) {
    return children_->exit_status().value_or(128 +
                                             SIGKILL);  // forced, and it has not died of it yet
  }
  const bool unkillable =
      std::ranges::any_of(unkillable_, [](const auto& process) { return process->is_alive(); });
  return unkillable ? exit_status::kUnkillable : exit_status::kStopped;
}

void Server::withdraw() {
  service_manager_.notify_stopping();
  directory_.stop_serving();
  directory_.pipe().remove_from_path();
  take_last_words();
  hooks_->stop();
  warnings_.flush_all("the server was stopped first");
  record_stop();
  if (!log_->drain(kLastSyncLimit)) {
    messages::error("the log '{}' could not be written to the end", log_->path());
  }
  if (!directory_.pipe().outlives_server()) {
    take_last_words();
  }
  control_->answer_stopped();
}

// Reads the requests that are left in the pipe: without a release among them the next server would
// kill a healthy worker. A pipe that outlives this server has writers, so requests that come later
// are read by the next server.
void Server::take_last_words() {
  control_->begin_iteration();
  read_requests(directory_.pipe().waiting());
  bury_the_dead();
  save_pages();
}

}  // namespace filetimer
