// SPDX-License-Identifier: MIT
#include "timer_server/kills/hooks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "timer_server/system/messages.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

// When to ask again for the status of a hook that has ended: a tracer may still hold it.
constexpr Duration kReapHookAgain = std::chrono::milliseconds{100};
// How long a hook may take to end after SIGKILL when the server stops.
constexpr int kStopWaitMs = 100;

std::string_view option_of(const HookOccasion& occasion) {
  return occasion.is_warning() ? "--on-warning" : "--on-expiry";
}

}  // namespace

struct Hooks::Running {
  HookOccasion occasion;
  HookOutcome outcome;
  OwnChild child;
  UniqueFd pidfd;
  EventSource end;
  Instant started;
  Instant next_step_at;
  int signals_sent = 0;  // SIGTERM, then SIGKILL
  bool has_ended = false;
  bool is_over = false;  // recorded

  // Until the hook is reaped, neither its pid nor its process group can belong to another process.
  void signal_group(int signal) const {
    if (child) {
      ::kill(-child.pid(), signal);
    }
  }
};

Hooks::Hooks(EventLoop& loop, HookCommands commands, std::vector<std::string> environment,
             Inheritance inheritance, const Records& records, RecordLog& log, HookLimits limits)
    : commands_(std::move(commands)),
      environment_(std::move(environment)),
      inheritance_(std::move(inheritance)),
      records_(records),
      log_(log),
      limits_(limits),
      loop_(loop) {}

Hooks::~Hooks() = default;

void Hooks::add(HookOccasion occasion, Instant now) {
  loop_thread_.check();
  if (command_for(occasion).empty()) {
    return;
  }
  if (waiting_.size() >= limits_.waiting) {
    messages::warning("{} is not run for {}: too many hooks wait", option_of(occasion),
                      occasion.id);
    record_not_run(occasion, HookResult::kDropped, "too many hooks wait");
    return;
  }
  waiting_.push_back({std::move(occasion), now + RecordLog::kStalled});
}

Instant Hooks::advance(Instant now) {
  loop_thread_.check();
  for (const auto& hook : running_) {
    check_time(*hook, now);
  }
  std::erase_if(running_, [](const auto& hook) { return hook->is_over; });
  Instant next = Instant::never();
  if (!waiting_.empty() && running_.size() < limits_.running) {
    const Waiting& first = waiting_.front();
    const bool may_start = log_.synced() >= first.occasion.record_number || !log_.is_working(now) ||
                           now >= first.start_by;
    next = may_start ? now : first.start_by;
    if (may_start) {
      // Each call starts one hook: a fork takes up to a millisecond, and deadlines wait meanwhile.
      HookOccasion occasion = std::move(waiting_.front().occasion);
      waiting_.pop_front();
      start(std::move(occasion), now);
    }
  }
  for (const auto& hook : running_) {
    next = std::min(next, hook->next_step_at);
  }
  return next;
}

std::vector<std::string> hook_environment(std::vector<std::string> environment,
                                          const HookOccasion& occasion, const Records& records,
                                          const RecordLog& log) {
  set_variable(environment, "FILETIMER_ID", occasion.id);
  unset_variable(environment, "FILETIMER_INCIDENT");
  if (!occasion.is_warning()) {
    set_variable(environment, "FILETIMER_INCIDENT", occasion.incident);
  }
  set_variable(environment, "FILETIMER_SCOPE", occasion.scope);
  set_variable(environment, "FILETIMER_VERDICT", std::string(occasion.verdict));
  set_variable(environment, "FILETIMER_PID", fmt::format("{}", occasion.worker.process->pid));
  set_variable(environment, "FILETIMER_HOST", records.host());
  set_variable(environment, "FILETIMER_LOG", log.path());
  // The server may have variables of a job of its own, which must not reach the hook.
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
    messages::error("{} for {}: {}", option_of(occasion), occasion.id, why);
    record_not_run(occasion, HookResult::kFailed, why);
  };
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ChildStart start;
  start.words = {"/bin/sh", "-c", command_for(occasion)};
  start.environment = hook_environment(environment_, occasion, records_, log_);
  start.input = nothing.get();
  start.output = STDERR_FILENO;
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
  // The hook sets its group as well. The server does so too, because it may signal the group before
  // the hook has run.
  ::setpgid(hook->child.pid(), hook->child.pid());
  hook->pidfd = open_pidfd(hook->child.pid());
  if (!hook->pidfd) {
    hook->signal_group(SIGKILL);
    occasion = std::move(hook->occasion);
    failed("cannot open its pidfd");
    return;
  }
  hook->started = now;
  hook->next_step_at = now + limits_.time;
  try {
    hook->end = watch_io(loop_, hook->pidfd.get(), EPOLLIN, kOrdinary, [ended = hook.get()] {
      ended->has_ended = true;
      ended->end.reset();
    });
  } catch (const std::system_error& error) {
    hook->signal_group(SIGKILL);
    occasion = std::move(hook->occasion);
    failed(error.what());
    return;
  }
  messages::debug("{} for {}: started as pid {}", option_of(hook->occasion), hook->occasion.id,
                  hook->outcome.pid);
  running_.push_back(std::move(hook));
}

void Hooks::check_time(Running& hook, Instant now) {
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
    hook.signal_group(SIGKILL);  // the rest of the group, while the number is not free yet
  }
  const auto status = hook.child.reap();
  if (!status && hook.has_ended) {
    hook.next_step_at = now + kReapHookAgain;
    return;
  }
  if (status) {
    outcome.exit_status = status->exit_status;
    outcome.signal = status->signal;
    if (outcome.result == HookResult::kExited && status->signal != 0) {
      outcome.result = HookResult::kSignalled;
    }
  }
  outcome.took = now - hook.started;
  const bool is_well = outcome.result == HookResult::kExited && outcome.exit_status == 0;
  messages::say(
      is_well ? messages::Level::kDebug : messages::Level::kWarning,
      fmt::format("{} for {}: {}", option_of(hook.occasion), hook.occasion.id, outcome.text()));
  record(hook.occasion, std::move(outcome));
  hook.is_over = true;
}

void Hooks::stop() {
  loop_thread_.check();
  for (const auto& hook : running_) {
    hook->signal_group(SIGKILL);
    hook->outcome.result = HookResult::kStopped;
    hook->outcome.reason = "the server stopped";
  }
  for (const auto& hook : running_) {
    pollfd ended{hook->pidfd.get(), POLLIN, 0};
    retry_eintr([&] { return ::poll(&ended, 1, kStopWaitMs); });
    hook->has_ended = false;  // end() records the hook even if it cannot be reaped
    end(*hook, Instant::now());
  }
  running_.clear();
  for (const Waiting& waiting : waiting_) {
    record_not_run(waiting.occasion, HookResult::kDropped, "the server stopped");
  }
  waiting_.clear();
}

void Hooks::record_not_run(const HookOccasion& occasion, HookResult result, std::string_view why) {
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
