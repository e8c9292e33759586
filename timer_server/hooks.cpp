// SPDX-License-Identifier: MIT
#include "timer_server/hooks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "timer_server/messages.hpp"
#include "timer_server/process.hpp"

namespace filetimer {
namespace {

// How soon to ask again for the status of one whose tracer has not let go of it.
constexpr Duration kReapAgain = std::chrono::milliseconds{100};
// When the server stops: how long one that was sent SIGKILL may take to be seen dead.
constexpr int kLastLookMs = 100;
// Of its output, in one go: the loop has others to look after.
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
// What a waiting one takes besides its input.
constexpr std::size_t kWaitingBytes = 1024;

struct Pipe {
  UniqueFd theirs;
  UniqueFd ours;  // never blocks
};

Result<Pipe> make_pipe(bool we_write) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return system_error("cannot make a pipe");
  }
  Pipe pipe{UniqueFd(ends[we_write ? 0 : 1]), UniqueFd(ends[we_write ? 1 : 0])};
  ::fcntl(pipe.ours.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

}  // namespace

struct Hooks::Running {
  HookOccasion occasion;
  HookOutcome outcome;
  OwnChild child;
  UniqueFd pidfd;
  UniqueFd input;  // none when it has it all
  UniqueFd output;
  std::size_t fed = 0;
  Instant started;
  Instant next_step_at;
  int signals_sent = 0;  // SIGTERM, then SIGKILL
  bool has_ended = false;
  bool is_over = false;  // recorded

  // Its pid is its own until it is reaped, and so is its process group.
  void signal_group(int signal) const {
    if (child) {
      ::kill(-child.pid(), signal);
    }
  }
};

Hooks::Hooks(std::string command, std::vector<std::string> environment, Inheritance inheritance,
             const Records& records, RecordLog& log, HookLimits limits)
    : command_(std::move(command)),
      environment_(std::move(environment)),
      inheritance_(std::move(inheritance)),
      records_(records),
      log_(log),
      limits_(limits),
      events_(::epoll_create1(EPOLL_CLOEXEC)) {}

Hooks::~Hooks() = default;

void Hooks::add(HookOccasion occasion, Instant now) {
  if (command_.empty()) {
    return;
  }
  const std::size_t bytes = occasion.input.size() + kWaitingBytes;
  if (waiting_bytes_ + bytes > limits_.waiting_bytes) {
    messages::warning("--on-expiry is not run for {}: too many wait for it", occasion.id);
    did_not_run(occasion, HookResult::kDropped, "too many waited");
    return;
  }
  waiting_bytes_ += bytes;
  waiting_.push_back({std::move(occasion), now + RecordLog::kStalled});
}

Instant Hooks::advance(Instant now) {
  take_events();
  for (const auto& hook : running_) {
    look_at_time(*hook, now);
  }
  std::erase_if(running_, [](const auto& hook) { return hook->is_over; });
  Instant next = Instant::never();
  if (!waiting_.empty() && running_.size() < limits_.running) {
    const Waiting& first = waiting_.front();
    const bool may_start = log_.synced() >= first.occasion.record_number || !log_.is_working(now) ||
                           now >= first.start_by;
    next = may_start ? now : first.start_by;
    if (may_start) {
      // One each time: a fork takes a part of a millisecond, in which deadlines pass.
      HookOccasion occasion = std::move(waiting_.front().occasion);
      waiting_.pop_front();
      waiting_bytes_ -= occasion.input.size() + kWaitingBytes;
      start(std::move(occasion), now);
    }
  }
  for (const auto& hook : running_) {
    next = std::min(next, hook->next_step_at);
  }
  return next;
}

std::vector<std::string> Hooks::environment_for(const HookOccasion& occasion) const {
  std::vector<std::string> environment = environment_;
  set_variable(environment, "FILETIMER_ID", occasion.id);
  set_variable(environment, "FILETIMER_INCIDENT", occasion.incident);
  set_variable(environment, "FILETIMER_SCOPE", occasion.scope);
  set_variable(environment, "FILETIMER_VERDICT", verdict_name(occasion.verdict));
  set_variable(environment, "FILETIMER_PID", fmt::format("{}", occasion.worker.process->pid));
  set_variable(environment, "FILETIMER_HOST", records_.host());
  set_variable(environment, "FILETIMER_LOG", log_.path());
  // The server may have a rank and a job of its own.
  unset_variable(environment, "FILETIMER_RANK");
  unset_variable(environment, "FILETIMER_JOB_ID");
  if (const auto& facts = *occasion.worker.facts) {
    if (facts->rank) {
      set_variable(environment, "FILETIMER_RANK", fmt::format("{}", *facts->rank));
    }
    if (!facts->job_id.empty()) {
      set_variable(environment, "FILETIMER_JOB_ID", facts->job_id);
    }
  }
  return environment;
}

void Hooks::start(HookOccasion occasion, Instant now) {
  const auto failed = [&](const std::string& why) {
    messages::error("--on-expiry for {}: {}", occasion.id, why);
    did_not_run(occasion, HookResult::kFailed, why);
  };
  auto input = make_pipe(true);
  auto output = make_pipe(false);
  if (!input || !output) {
    failed(!input ? input.error().message : output.error().message);
    return;
  }
  ChildStart start;
  start.words = {"/bin/sh", "-c", command_};
  start.environment = environment_for(occasion);
  start.input = input->theirs.get();
  start.output = output->theirs.get();
  start.own_group = true;
  auto child = start_child(start, inheritance_);
  if (!child) {
    failed(child.error().message);
    return;
  }
  auto hook = std::make_unique<Running>();
  hook->occasion = std::move(occasion);
  hook->outcome.pid = child->pid();
  hook->child = std::move(*child);
  // Both processes do it: whoever comes first, the group is there when it is to be signalled.
  ::setpgid(hook->child.pid(), hook->child.pid());
  hook->pidfd = open_pidfd(hook->child.pid());
  if (!hook->pidfd) {
    hook->signal_group(SIGKILL);
    occasion = std::move(hook->occasion);
    failed("its end can't be seen: no pidfd");
    return;
  }
  hook->input = std::move(input->ours);
  hook->output = std::move(output->ours);
  hook->started = now;
  hook->next_step_at = now + limits_.time;
  epoll_event event{};
  event.data.ptr = hook.get();
  event.events = EPOLLIN | EPOLLONESHOT;  // it stays readable for ever: tell once
  ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, hook->pidfd.get(), &event);
  event.events = EPOLLIN;
  ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, hook->output.get(), &event);
  event.events = EPOLLOUT;
  ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, hook->input.get(), &event);
  messages::debug("--on-expiry for {}: started as pid {}", hook->occasion.id, hook->outcome.pid);
  running_.push_back(std::move(hook));
}

// Which of a hook's descriptors it was is not asked: none of them blocks.
void Hooks::take_events() {
  std::array<epoll_event, 32> events{};
  const int count = running_.empty() ? 0
                                     : ::epoll_wait(events_.get(), events.data(),
                                                    static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    Running& hook = *static_cast<Running*>(events[static_cast<std::size_t>(i)].data.ptr);
    feed(hook);
    read_output(hook);
    pollfd end{hook.pidfd.get(), POLLIN, 0};
    hook.has_ended = hook.has_ended || ::poll(&end, 1, 0) > 0;
  }
}

void Hooks::feed(Running& hook) const {
  if (!hook.input) {
    return;
  }
  const std::string& text = hook.occasion.input;
  const ssize_t put = retry_eintr(
      [&] { return ::write(hook.input.get(), text.data() + hook.fed, text.size() - hook.fed); });
  if (put < 0 && errno == EAGAIN) {
    return;
  }
  hook.fed += static_cast<std::size_t>(std::max<ssize_t>(put, 0));
  if (put < 0 || hook.fed == text.size()) {  // one that does not read is none of our business
    close(hook.input);
  }
}

// By name: until its execution another child that was just forked holds all our descriptors, and an
// epoll goes on telling of what is open anywhere.
void Hooks::close(UniqueFd& fd) const {
  if (fd) {
    ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    fd.reset();
  }
}

void Hooks::read_output(Running& hook) {
  std::array<char, 4096> bytes;
  HookOutcome& outcome = hook.outcome;
  for (std::size_t read = 0; hook.output && read < kReadAtOnce;) {
    const ssize_t got =
        retry_eintr([&] { return ::read(hook.output.get(), bytes.data(), bytes.size()); });
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    const auto count = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    read += count;
    outcome.output_bytes += count;
    const std::size_t room = limits_.output_shown - outcome.output.size();
    outcome.output.append(bytes.data(), std::min(count, room));
    if (got <= 0 || outcome.output_bytes >= limits_.output_read) {
      close(hook.output);
    }
  }
}

void Hooks::look_at_time(Running& hook, Instant now) {
  if (hook.has_ended) {
    end(hook, now);
    return;
  }
  if (now < hook.next_step_at) {
    return;
  }
  hook.outcome.result = HookResult::kTimedOut;
  if (hook.signals_sent++ == 0) {
    hook.signal_group(SIGTERM);
    hook.next_step_at = now + limits_.grace;
  } else if (hook.signals_sent == 2) {
    hook.signal_group(SIGKILL);
    hook.next_step_at = now + limits_.kill_wait;
  } else {
    hook.outcome.reason = "still alive after SIGKILL";
    end(hook, now);
  }
}

void Hooks::end(Running& hook, Instant now) {
  HookOutcome& outcome = hook.outcome;
  if (hook.signals_sent > 0) {
    hook.signal_group(SIGKILL);  // what it left behind of its group, before that number is free
  }
  const auto status = hook.child.reap();
  if (!status && hook.has_ended) {
    hook.next_step_at = now + kReapAgain;
    return;
  }
  read_output(hook);
  if (status) {
    outcome.exit_status = status->exit_status;
    outcome.signal = status->signal;
    if (outcome.result == HookResult::kExited && status->signal != 0) {
      outcome.result = HookResult::kSignalled;
    }
  }
  outcome.took = now - hook.started;
  const bool is_well = outcome.result == HookResult::kExited && outcome.exit_status == 0;
  messages::say(is_well ? messages::Level::kDebug : messages::Level::kWarning,
                fmt::format("--on-expiry for {}: {}", hook.occasion.id, outcome.text()));
  record(hook.occasion, std::move(outcome));
  for (UniqueFd* const fd : {&hook.input, &hook.output, &hook.pidfd}) {
    close(*fd);
  }
  hook.is_over = true;
}

void Hooks::give_up() {
  for (const auto& hook : running_) {
    hook->signal_group(SIGKILL);
    hook->outcome.result = HookResult::kStopped;
    hook->outcome.reason = "the server stopped";
  }
  for (const auto& hook : running_) {
    pollfd its_end{hook->pidfd.get(), POLLIN, 0};
    retry_eintr([&] { return ::poll(&its_end, 1, kLastLookMs); });
    hook->has_ended = false;  // recorded as it stands
    end(*hook, Instant::now());
  }
  running_.clear();
  for (const Waiting& waiting : waiting_) {
    did_not_run(waiting.occasion, HookResult::kDropped, "the server stopped");
  }
  waiting_.clear();
  waiting_bytes_ = 0;
}

void Hooks::did_not_run(const HookOccasion& occasion, HookResult result, std::string_view why) {
  HookOutcome outcome;
  outcome.result = result;
  outcome.reason = why;
  record(occasion, std::move(outcome));
}

void Hooks::record(const HookOccasion& occasion, HookOutcome outcome) {
  outcome.id = occasion.id;
  outcome.incident = occasion.incident;
  outcome.scope = occasion.scope;
  log_.append(records_.hook(occasion.worker, outcome));
}

}  // namespace filetimer
