// SPDX-License-Identifier: MIT
#include "timer_server/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/soft_deadline.hpp"
#include "common/wake_protocol.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/pages/page_guard.hpp"
#include "timer_server/past_verdicts.hpp"

namespace filetimer {
namespace {

// After a stop was asked for: how long kills that are under way may take to end.
constexpr Duration kStopLimit = std::chrono::seconds{2};
// Then, how long hooks may go on.
constexpr Duration kHookStopLimit = std::chrono::seconds{10};
// And how long the log may take to reach the disk.
constexpr Duration kLastSyncLimit = std::chrono::seconds{2};
// Boards that are kept: the one in place, and those of run folders that were removed.
constexpr std::size_t kMaxBoards = 4;

// A flood: more than this came at once. Then each write of each writer would wake us for one line;
// instead the pipe, which can hold the work of a millisecond, is read once in a pause.
constexpr std::size_t kFloodBytes = 2048;
constexpr Duration kFloodPause = std::chrono::microseconds{200};

// After an iteration that threw an exception: when the next one comes.
constexpr Duration kAfterFailure = std::chrono::milliseconds{100};

constexpr std::array kSignals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};

}  // namespace

Server::Server(Settings settings, Premises premises, Inheritance inheritance)
    : settings_(std::move(settings)),
      dir_(std::move(premises.dir)),
      restore_folder_(std::move(premises.restore_folder)),
      pipe_(std::move(premises.pipe)),
      log_(std::move(premises.log)),
      page_folder_(std::move(premises.pages)),
      reply_folder_(std::move(premises.replies)),
      ended_statistics_(std::make_unique<EndedStatistics>(page_folder_.server_path(kEndedName))),
      records_(RecordOrigin::of_this_process(dir_)),
      hooks_(settings_.on_expiry, environment_for_children(dir_, pipe_.path()),
             std::move(inheritance), records_, *log_),
      side_threads_(settings_.realtime),
      ladder_(
          settings_.kill, records_, *log_, side_threads_,
          {.was_released = [this](const Process& worker,
                                  const Expiry& expiry) { return was_released(worker, expiry); },
           .on_signal = [this](const Process& worker,
                               bool is_final) { return on_signal_due(worker, is_final); },
           .on_end = [this](const KillOrder& order,
                            const KillEnd& end) { on_kill_ended(order, end); }}),
      warn_at_(settings_.warn_at ? warn_at_word(*settings_.warn_at) : 0),
      table_(warn_at_),
      warnings_(settings_.kill, records_, *log_, side_threads_),
      reader_(*this),
      now_(ClockReading::now()),
      next_sweep_(now_.mono + settings_.max_interval),
      rendezvous_(std::max(most_askers(), Askers::kReserved + 1) - Askers::kReserved),
      join_by_(settings_.join_timeout ? started_ + *settings_.join_timeout : Instant::never()) {
  boards_.push_back(std::move(premises.board));
  sd_event* event = nullptr;
  check_event(::sd_event_new(&event), "cannot make an event loop");
  loop_.reset(event);
  askers_.emplace(event, most_askers(), [this](Askers::Id asker) { on_withdrawn(asker); });
  listen();
  sources_.push_back(add_io(log_->event_fd(), kOrdinary, [this] { on_log_event(); }));
  sources_.push_back(add_io(side_threads_.event_fd(), kOrdinary, [this] { on_side_event(); }));
  sources_.push_back(add_io(ladder_.death_fd(), kOrdinary, [this] { turn(); }));
  sources_.push_back(add_io(hooks_.event_fd(), kOrdinary, [this] { turn(); }));

  sd_event_source* source = nullptr;
  // Accuracy 1 us: the default would put a deadline off by up to 250 ms to save wakeups.
  check_event(::sd_event_add_time(
                  loop_.get(), &source, CLOCK_MONOTONIC, 0, 1,
                  [](sd_event_source*, uint64_t, void* self) {
                    guarded([self] { static_cast<Server*>(self)->turn(); });
                    return 0;
                  },
                  this),
              "cannot make a timer");
  timer_.reset(source);
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
  boards_.back().serve();
  PastRecords past = read_past_records(log_->path(), records_.boot_id(), dir_);
  past_ = std::move(past.verdicts);
  is_adopting_ = true;
  adopt_pages();
  recall_warnings(past.warnings);
  resume_kills();
  is_adopting_ = false;
  past_ = {};
  record_start();
  if (pipe_.outlives_us()) {
    look_after_pipe();  // it may have been removed while no server was there
  }
}

Server::~Server() = default;

EventSource Server::add_io(int fd, int64_t priority, std::function<void()> handler) {
  return watch_io(loop_.get(), fd, EPOLLIN, priority, std::move(handler));
}

void Server::listen() {
  pipe_source_ = add_io(pipe_.fd(), kRequests, [this] { turn(); });
}

std::string Server::ready_line() const {
  return fmt::format("ready dir={} fifo={} log={} pid={}", dir_, pipe_.path(), log_->path(),
                     ::getpid());
}

// ---------------------------------------------------------------------------------------------
// An iteration that fails leaves the timer armed all the same, and nothing that it was to look at
// waits for the next sweep.
void Server::turn() {
  try {
    iterate();
  } catch (...) {
    scan_wanted_ = true;
    pages_unlooked_ = true;
    arm(Instant::now() + kAfterFailure);
    throw;
  }
}

// The rule of the product: read all signs of life, then judge, then carry out what was judged.
// Whatever woke us - a request, a deadline, a record on disk - comes through here.
void Server::iterate() {
  const Oversleep::Clocks clocks = Oversleep::Clocks::read();
  const Instant woke = clocks.now;
  considered_ = 0;
  read_requests();
  bury_the_dead();
  make_up_for_oversleep(clocks);
  save_pages();
  if (ending_by_.is_never()) {
    judge(woke);
  }
  const Instant now = Instant::now();
  if (now >= next_sweep_) {
    sweep(now);
  }
  report_rejections(now, false);
  look_after_children(now);
  if (now >= next_halt_look_) {
    look_at_halted(now);
  }
  look_after_askers(now);
  look_after_expected(now);
  const Instant ladder_next = ladder_.advance(now);
  warn(woke);
  if (now >= stop_by_) {
    ladder_.give_up();
  }
  const Instant hooks_next = hooks_.advance(now);
  const Instant warnings_next = warnings_.advance(now);
  if (!log_->is_working(now)) {
    tell_log_news(now);
  }
  if (may_end(now)) {
    ::sd_event_exit(loop_.get(), 0);
    return;
  }
  Instant next =
      std::min({ladder_next, warnings_next, hooks_next, next_sweep_, next_halt_look_,
                rejections_.next_report(), read_again_, reap_again_, reap_strangers_at_,
                next_shutdown_look_, join_by_, questions_.empty() ? Instant::never() : Instant{},
                rendezvous_.next_failure(), askers_->advance(now)});
  next = ending_by_.is_never() ? std::min({next, scan_wanted_ ? Instant{} : next_scan_,
                                           table_.next_deadline(), stop_by_})
                               : std::min(next, ending_by_);
  arm(next);
}

// What is in the pipe now, but no more than it can hold: writers that never pause must not keep a
// deadline waiting.
std::size_t Server::read_requests(std::size_t most) {
  std::size_t read = 0;
  while (read < most) {
    std::span<char> room = reader_.room();
    room = room.first(std::min(room.size(), most - read));
    const std::size_t count = pipe_.read(room);
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
  // After the scan: a worker that the scan finds resumed has time for its scopes of the pipe, too.
  if (table_.next_deadline() <= woke) {
    for (Scope* scope : table_.due(woke)) {
      due.push_back({scope->worker, scope->terms.deadline, scope, {}});
    }
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
      // It ended behind the verdict on its page: its scopes were left open.
      for (const DueScope* scope : of_worker[worker]) {
        if (scope->on_page.page) {
          scope->on_page.page->reopen(scope->on_page.slot, scope->on_page.word);
        }
      }
      bury(*worker);
    } else if (!puts_off_pipe(*worker, of_worker[worker])) {
      expire(*worker, of_worker[worker]);
    }
  }
}

void Server::arm(Instant next) {
  oversleep_.sleep(next, Oversleep::Clocks::read());
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
  look_after_folder();
  look_after_pipe();
  look_for_pages();
  look_for_halted();
  look_after_replies();
  scan_wanted_ = true;  // in the next turn, which is at once
  tell_log_news(now);
  service_manager_.tell_state(table_.worker_count(), killed_);
}

// From the moment at which only hooks are left nothing is judged any more: what is open then is the
// next server's.
bool Server::may_end(Instant now) {
  const bool asked = command_ ? command_status_.has_value() : stopping_ != nullptr;
  const bool is_done = asked && ladder_.idle() && (!forced_ || all_killed_);
  if (ending_by_.is_never() && (is_done || now >= stop_by_)) {
    ending_by_ = now + kHookStopLimit;
  }
  return !ending_by_.is_never() && (hooks_.idle() || now >= ending_by_);
}

// ---------------------------------------------------------------------------------------------

void Server::look_after_folder() {
  auto restored = restore_folder_();
  if (!restored) {
    if (restored.error().message != folder_trouble_) {
      folder_trouble_ = restored.error().message;
      messages::warning("{}", folder_trouble_);
    }
    return;
  }
  folder_trouble_.clear();
  if (!*restored) {
    return;
  }
  if ((*restored)->board) {
    // A client that has mapped the old board wakes the server at each acquire from now on.
    announce_scan(boards_.back().board());
    boards_.push_back(std::move(*(*restored)->board));
    if (boards_.size() > kMaxBoards) {
      boards_.erase(boards_.begin());
    }
    boards_.back().serve();
    announce();
  }
  page_folder_ = std::move((*restored)->pages);
  reply_folder_ = std::move((*restored)->replies);
  ended_statistics_ = std::make_unique<EndedStatistics>(page_folder_.server_path(kEndedName));
  pages_unlooked_ = true;
  scan_wanted_ = true;
  messages::warning("something in '{}' was removed: made again", dir_);
}

void Server::look_after_pipe() {
  const auto told = [this](std::string trouble) {
    if (trouble != pipe_trouble_ && !trouble.empty()) {
      messages::warning("{}", trouble);
    }
    pipe_trouble_ = std::move(trouble);
  };
  switch (pipe_.look()) {
    case RequestPipe::Condition::kInPlace:
      told({});
      return;
    case RequestPipe::Condition::kTakenOver:
      told(
          fmt::format("'{}' was replaced by a pipe that another process reads: requests written "
                      "there do not reach this server",
                      pipe_.path()));
      return;
    case RequestPipe::Condition::kGone:
      break;
  }
  if (Status moved = set_aside(pipe_.path()); !moved) {
    told(moved.error().message);
    return;
  }
  auto made = RequestPipe::open(pipe_.path());
  if (!made) {
    told(made.error().message);
    return;
  }
  read_requests();  // what was written before the old pipe goes
  pipe_source_.reset();
  pipe_ = std::move(*made);
  listen();
  // Of all of them: somebody may have found no reader meanwhile, and waits for a new incarnation.
  for (BoardFile& board : boards_) {
    board.serve();
  }
  scan_wanted_ = true;
  read_again_ = Instant::never();
  messages::warning("the pipe '{}' was gone: made again", pipe_.path());
  pipe_trouble_.clear();
}

void Server::tell_log_news(Instant now) {
  bool is_good_news = false;
  const std::string news = log_->take_news(now, is_good_news);
  if (!news.empty()) {
    messages::say(is_good_news ? messages::Level::kInfo : messages::Level::kError, news);
  }
}

void Server::on_log_event() {
  log_->acknowledge();
  tell_log_news(Instant::now());
  turn();
}

void Server::on_side_event() {
  side_threads_.deliver();
  turn();
}

void Server::on_signal(int signal, bool from_terminal) {
  if (signal == SIGCHLD) {
    reap_strangers_at_ = {};
    turn();
    return;
  }
  messages::debug("got {}", signal_name(signal));
  const bool ends = signal == SIGTERM || signal == SIGINT;
  if (ends && is_told_to_end_ && !ending_by_.is_never()) {
    ending_by_ = {};  // told again: hooks are not waited for
    turn();
    return;
  }
  if (!command_) {
    if (ends) {
      begin_stop(signal == SIGTERM ? "SIGTERM" : "SIGINT");
      turn();
    } else if (signal == SIGHUP) {
      log_->reopen();
    }
    return;
  }
  if (ends && was_signalled_) {
    force_end(fmt::format("a second {}", signal_name(signal)));
    turn();
    return;
  }
  was_signalled_ = was_signalled_ || ends;
  is_told_to_end_ = is_told_to_end_ || ends;
  announce();
  command_->forward(signal, from_terminal);
}

void Server::begin_stop(const char* why) {
  if (stopping_ == nullptr) {
    service_manager_.tell_stopping();
    stopping_ = why;
    is_told_to_end_ = true;
    stop_by_ = Instant::now() + kStopLimit;
    ladder_.hurry(Instant::now());
    announce();
  }
}

int Server::run() {
  service_manager_.keep_informed(loop_.get());
  service_manager_.tell_ready();
  service_manager_.tell_state(table_.worker_count(), killed_);
  turn();
  check_event(::sd_event_loop(loop_.get()), "the event loop failed");
  ladder_.give_up();
  withdraw();
  if (command_) {
    return command_status_.value_or(128 + SIGKILL);  // forced, and it has not died of it yet
  }
  const bool unkillable =
      std::ranges::any_of(unkillable_, [](const auto& process) { return process->is_alive(); });
  return unkillable ? exit_status::kUnkillable : exit_status::kStopped;
}

void Server::withdraw() {
  is_withdrawn_ = true;
  service_manager_.tell_stopping();
  for (BoardFile& board : boards_) {
    board.stop();
  }
  pipe_.remove_from_path();
  take_last_words();
  hooks_.give_up();
  warnings_.settle_all("the server was stopped first");
  record_stop();
  if (!log_->drain(kLastSyncLimit)) {
    messages::error("the log '{}' could not be written to the end", log_->path());
  }
  if (!pipe_.outlives_us()) {
    take_last_words();
  }
  tell_stopped();
}

// What is still in the pipe goes with it: above all a release, for want of which the next server
// would kill a healthy worker. A pipe that stays has writers, so what comes from now on is the next
// server's.
void Server::take_last_words() {
  considered_ = 0;
  read_requests(pipe_.waiting());
  bury_the_dead();
  save_pages();
}

}  // namespace filetimer
