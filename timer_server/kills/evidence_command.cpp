// SPDX-License-Identifier: MIT
#include "timer_server/kills/evidence_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <utility>

#include "common/duration_text.hpp"
#include "timer_server/kills/hooks.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/own_children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

constexpr const char* kOption = "--evidence-command";
// The most bytes that are read at one time, so that a command that writes without end delays no
// verdict.
constexpr std::size_t kMaxRead = EvidenceCommand::kMaxOutput;

}  // namespace

struct EvidenceCommand::Running {
  WorkerIdentity worker;
  HookOutcome outcome;
  std::string output;
  std::uint64_t output_bytes = 0;
  OwnChild child;
  UniqueFd pidfd;
  UniqueFd pipe;
  EventSource end;
  EventSource readable;
  Instant started;
  Instant until;
  bool has_ended = false;
};

EvidenceCommand::EvidenceCommand(EventLoop& loop, std::string command, Duration limit,
                                 std::vector<std::string> environment, Inheritance inheritance,
                                 const Records& records, RecordLog& log)
    : loop_(loop),
      command_(std::move(command)),
      limit_(limit),
      environment_(std::move(environment)),
      inheritance_(std::move(inheritance)),
      records_(records),
      log_(log) {}

EvidenceCommand::~EvidenceCommand() = default;

void EvidenceCommand::start(const WorkerIdentity& worker, const std::string& id,
                            const std::string& incident, const std::string& scope, Instant now) {
  loop_thread_.check();
  if (!is_wanted()) {
    return;
  }
  if (running_.size() >= kMaxRunning) {
    end_by_kill(*running_.front(), HookResult::kStopped, "too many evidence commands were running",
                now);
    running_.erase(running_.begin());
  }
  auto running = std::make_unique<Running>();
  running->worker = worker;
  running->outcome.id = id;
  running->outcome.incident = incident;
  running->outcome.scope = scope;
  const auto failed = [&](const std::string& why) {
    if (running->outcome.pid != 0) {
      ::kill(-running->outcome.pid, SIGKILL);
    }
    messages::error("{} for {}: {}", kOption, id, why);
    running->outcome.result = HookResult::kFailed;
    running->outcome.reason = why;
    log_.append(records_.evidence_command(worker, running->outcome, {}, 0));
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    failed("cannot make a pipe for its output");
    return;
  }
  running->pipe = UniqueFd(ends[0]);
  const UniqueFd output(ends[1]);
  ::fcntl(running->pipe.get(), F_SETFL, O_NONBLOCK);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ChildStart start;
  start.words = {"/bin/sh", "-c", command_};
  start.environment = hook_environment(
      environment_,
      {.worker = worker, .id = id, .incident = incident, .scope = scope, .verdict = "expired"},
      records_, log_);
  start.input = nothing.get();
  start.output = output.get();
  start.own_group = true;
  auto child = start_child(start, inheritance_);
  if (!child) {
    failed(child.error().message);
    return;
  }
  running->outcome.pid = child->pid();
  running->child = std::move(*child);
  // The command sets its group as well. The server does so too, because it may signal the group
  // before the command has run.
  ::setpgid(running->child.pid(), running->child.pid());
  running->pidfd = open_pidfd(running->child.pid());
  if (!running->pidfd) {
    failed("cannot open its pidfd");
    return;
  }
  running->started = now;
  running->until = now + limit_;
  Running& begun = *running;
  try {
    begun.end = watch_io(loop_, begun.pidfd.get(), EPOLLIN, kOrdinary, [&begun] {
      begun.has_ended = true;
      begun.end.reset();
    });
    begun.readable =
        watch_io(loop_, begun.pipe.get(), EPOLLIN, kOrdinary, [&begun] { read_output(begun); });
  } catch (const std::system_error& error) {
    failed(error.what());
    return;
  }
  running_.push_back(std::move(running));
  messages::debug("{} for {}: started as pid {}", kOption, id, begun.outcome.pid);
}

bool EvidenceCommand::is_running(const std::string& incident) const {
  return std::ranges::any_of(
      running_, [&](const auto& running) { return running->outcome.incident == incident; });
}

void EvidenceCommand::read_output(Running& running) {
  std::array<char, 4096> block{};
  for (std::size_t read = 0; read < kMaxRead;) {
    const ssize_t got =
        retry_eintr([&] { return ::read(running.pipe.get(), block.data(), block.size()); });
    if (got <= 0) {
      if (got == 0) {
        running.readable.reset();  // the end of the output
      }
      return;
    }
    const auto bytes = static_cast<std::size_t>(got);
    running.output.append(block.data(), std::min(bytes, kMaxOutput - running.output.size()));
    running.output_bytes += bytes;
    read += bytes;
  }
}

Instant EvidenceCommand::advance(Instant now) {
  loop_thread_.check();
  Instant next = Instant::never();
  std::erase_if(running_, [&](const auto& running) {
    if (running->has_ended) {
      end(*running, now);
      return true;
    }
    if (now >= running->until) {
      end_by_kill(
          *running, HookResult::kTimedOut,
          fmt::format("it was killed after {}, see --evidence-timeout", duration_text(limit_)),
          now);
      return true;
    }
    next = std::min(next, running->until);
    return false;
  });
  return next;
}

// A process that the command has started in another group may hold the pipe: what that process
// writes later is lost.
void EvidenceCommand::end(Running& running, Instant now) {
  // All of the group, while the number is not free yet.
  ::kill(-running.child.pid(), SIGKILL);
  read_output(running);
  if (const auto status = running.child.reap()) {
    running.outcome.exit_status = status->exit_status;
    running.outcome.signal = status->signal;
    if (running.outcome.result == HookResult::kExited && status->signal != 0) {
      running.outcome.result = HookResult::kSignalled;
    }
  }
  running.outcome.took = now - running.started;
  const bool is_well =
      running.outcome.result == HookResult::kExited && running.outcome.exit_status == 0;
  messages::say(is_well ? messages::Level::kDebug : messages::Level::kWarning,
                fmt::format("{} for {}: {}", kOption, running.outcome.id, running.outcome.text()));
  log_.append_detail(records_.evidence_command(running.worker, running.outcome, running.output,
                                               running.output_bytes));
}

void EvidenceCommand::end_by_kill(Running& running, HookResult result, std::string_view reason,
                                  Instant now) {
  running.outcome.result = result;
  running.outcome.reason = reason;
  ::kill(-running.child.pid(), SIGKILL);
  pollfd ended{running.pidfd.get(), POLLIN, 0};
  retry_eintr([&] { return ::poll(&ended, 1, kEndWaitMs); });
  end(running, now);
}

void EvidenceCommand::stop() {
  loop_thread_.check();
  for (const auto& running : running_) {
    end_by_kill(*running, HookResult::kStopped, "the server stopped", Instant::now());
  }
  running_.clear();
}

}  // namespace filetimer
