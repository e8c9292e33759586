// SPDX-License-Identifier: MIT
#include "timer_server/kills/commands.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "timer_server/evidence/drop_ins.hpp"
#include "timer_server/kills/incidents.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// When to ask again for the status of a hook that has ended: a tracer may still hold it. Also when
// to try again what has failed.
constexpr Duration kReapHookAgain = std::chrono::milliseconds{100};
// How long the end of a killed command is waited for, and when the server stops.
constexpr Duration kEndWait = std::chrono::milliseconds{10};
constexpr Duration kStopWait = std::chrono::milliseconds{100};

std::vector<std::string> shell(const std::string& line) {
  return {"/bin/sh", "-c", line};
}

}  // namespace

struct Commands::Command {
  explicit Command(CommandOccasion the_occasion) : occasion(std::move(the_occasion)) {}

  CommandOccasion occasion;
  bool is_evidence = false;
  HookOutcome outcome;
  ChildStart start;
  bool is_waiting = true;
  Instant next_step_at;
  Instant started;
  OwnChild child;
  EventSource end;  // null: the command waits, or has ended
  // Of an evidence command.
  UniqueFd pipe;
  EventSource readable;
  std::string output;
  std::uint64_t output_bytes = 0;

  [[nodiscard]] std::string name() const {
    return !outcome.drop_in.empty()    ? "the drop-in " + outcome.drop_in
           : is_evidence               ? "--evidence-command"
           : occasion.incident.empty() ? "--on-warning"
                                       : "--on-expiry";
  }

  // Until the command is reaped, neither its pid nor its process group can belong to another
  // process.
  void signal_group(int signal) const {
    if (child) {
      ::kill(-child.pid(), signal);
    }
  }

  // Reads no more than kMaxCommandOutputBytes at one time, so that a command that writes without
  // end delays no verdict.
  void read_output() {
    std::array<char, 4096> block{};
    for (std::size_t read = 0; read < kMaxCommandOutputBytes;) {
      const ssize_t got =
          retry_eintr([&] { return ::read(pipe.get(), block.data(), block.size()); });
      if (got <= 0) {
        if (got == 0) {
          readable.reset();  // the end of the output
        }
        return;
      }
      const auto bytes = static_cast<std::size_t>(got);
      output.append(block.data(), std::min(bytes, kMaxCommandOutputBytes - output.size()));
      output_bytes += bytes;
      read += bytes;
    }
  }
};

Commands::Commands(Core& core)
    : core_(core),
      environment_(environment_for_children(core.directory.path(), core.directory.pipe().path())) {}

Commands::~Commands() = default;

void Commands::add_hook(CommandOccasion occasion, Instant now) {
  if (hook_for(occasion).empty()) {
    return;
  }
  auto hook = std::make_unique<Command>(std::move(occasion));
  hook->next_step_at = now + RecordLog::kStalled;
  const bool is_on_warning = hook->occasion.incident.empty();
  const auto waits = [](bool on_warning) {
    return [on_warning](const auto& other) {
      return other->is_waiting && other->occasion.incident.empty() == on_warning;
    };
  };
  if (static_cast<std::size_t>(std::ranges::count_if(commands_, waits(is_on_warning))) <
      kMaxHooksWaiting) {
    // That of a kill starts before those of warnings.
    commands_.insert(is_on_warning ? commands_.end() : std::ranges::find_if(commands_, waits(true)),
                     std::move(hook));
    return;
  }
  messages::warning("{} is not run for {}: too many hooks wait", hook->name(), hook->occasion.id);
  drop(*hook, "too many hooks wait");
}

std::size_t Commands::count_running(bool is_evidence) const {
  return static_cast<std::size_t>(std::ranges::count_if(commands_, [&](const auto& command) {
    return command->is_evidence == is_evidence && !command->is_waiting;
  }));
}

void Commands::start_evidence(const CommandOccasion& occasion, Instant now) {
  const Settings& settings = core_.settings;
  const bool is_first_of_incident = occasion.incident != incident_;
  const bool has_command = is_first_of_incident && !settings.evidence_command.empty();
  if (is_first_of_incident) {
    incident_ = occasion.incident;
    jobs_.clear();
  }
  const bool is_first_of_job = jobs_.insert(job_of(*occasion.worker.facts)).second;
  if (!has_command && (settings.drop_ins.empty() || !is_first_of_job)) {
    return;
  }
  std::vector<WorkerIdentity> workers{occasion.worker};
  for (const Worker* const peer : peers_of(core_, occasion.worker)) {
    workers.push_back(*peer);
  }
  std::string pids;
  std::string ranks;
  std::set<std::string> variables;
  for (const WorkerIdentity& worker : workers) {
    const WorkerFacts& facts = *worker.facts;
    const char* const space = pids.empty() ? "" : " ";
    pids += fmt::format("{}{}", space, worker.process->pid);
    ranks += space + (facts.rank ? fmt::format("{}", *facts.rank) : "-");
    variables.insert(facts.variables.begin(), facts.variables.end());
  }
  std::vector<std::string> environment = environment_for(occasion);
  set_variable(environment, "FILETIMER_PIDS", pids);
  set_variable(environment, "FILETIMER_RANKS", ranks);
  for (const DropIn& drop_in : settings.drop_ins) {
    if (is_first_of_job && has_what_it_needs(drop_in, variables)) {
      start_evidence_command(occasion, drop_in.name, {{drop_in.path}, environment}, now);
    }
  }
  if (has_command) {
    start_evidence_command(occasion, "", {shell(settings.evidence_command), environment}, now);
  }
}

void Commands::start_evidence_command(const CommandOccasion& occasion, std::string_view drop_in,
                                      ChildStart start, Instant now) {
  auto command = std::make_unique<Command>(occasion);
  command->is_evidence = true;
  command->outcome.drop_in = drop_in;
  command->start = std::move(start);
  if (count_running(true) >= kMaxEvidenceCommands) {
    drop(*command, fmt::format("{} evidence commands were running", kMaxEvidenceCommands));
  } else if (run(*command, now)) {
    commands_.push_back(std::move(command));
  }
}

bool Commands::is_gathering(const std::string& incident) const {
  return std::ranges::any_of(commands_, [&](const auto& command) {
    return command->is_evidence && command->occasion.incident == incident;
  });
}

void Commands::end_commands(Instant now) {
  std::erase_if(commands_, [&](const auto& command) {
    bool is_over = false;
    // No kill waits for memory for the record of a command.
    if (!messages::guard([&] { is_over = step(*command, now); })) {
      command->next_step_at = now + kReapHookAgain;
    }
    return is_over;
  });
}

Instant Commands::start_hooks(Instant now) {
  Instant next = Instant::never();
  const auto first = std::ranges::find(commands_, true, &Command::is_waiting);
  if (first != commands_.end() && count_running(false) < kMaxHooks) {
    Command& hook = **first;
    const CommandOccasion& occasion = hook.occasion;
    const bool may_start = core_.log->synced() >= occasion.record_number ||
                           !core_.log->failure().empty() || now >= hook.next_step_at;
    next = may_start ? now : hook.next_step_at;
    if (may_start) {
      // Each call starts one hook: a fork takes up to a millisecond, and deadlines wait meanwhile.
      core_.kill_files.note_hook(occasion.id);
      hook.start = {shell(hook_for(occasion)), environment_for(occasion)};
      if (!run(hook, now)) {
        commands_.erase(first);
      }
    }
  }
  for (const auto& command : commands_) {
    next = command->is_waiting ? next : std::min(next, command->next_step_at);
  }
  return next;
}

std::vector<std::string> Commands::environment_for(const CommandOccasion& occasion) const {
  const auto given = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string_view>(text);
  };
  const WorkerFacts& facts = *occasion.worker.facts;
  const std::string rank = facts.rank ? fmt::format("{}", *facts.rank) : "";
  std::vector<std::string> environment = environment_;
  set_variable(environment, "FILETIMER_ID", occasion.id);
  set_variable(environment, "FILETIMER_INCIDENT", given(occasion.incident));
  set_variable(environment, "FILETIMER_SCOPE", occasion.scope);
  set_variable(environment, "FILETIMER_VERDICT", occasion.verdict);
  set_variable(environment, "FILETIMER_PID", fmt::format("{}", occasion.worker.process->pid));
  set_variable(environment, "FILETIMER_HOST", core_.records.host());
  set_variable(environment, "FILETIMER_LOG", core_.log->path());
  // The server may have variables of a job of its own, which must not reach the command.
  set_variable(environment, "FILETIMER_RANK", given(rank));
  set_variable(environment, "FILETIMER_JOB_ID", given(facts.job_id));
  return environment;
}

bool Commands::run(Command& command, Instant now) {
  command.is_waiting = false;
  command.started = now;
  command.next_step_at =
      now + (command.is_evidence ? core_.settings.kill.evidence_timeout : kHookTime);
  HookOutcome& outcome = command.outcome;
  try {
    outcome.reason = start(command);
  } catch (const std::exception& error) {  // without `end` it would count as ended, and run on
    outcome.reason = error.what();
  }
  if (!outcome.reason.empty()) {
    command.signal_group(SIGKILL);
    messages::error("{} for {}: {}", command.name(), command.occasion.id, outcome.reason);
    outcome.result = HookResult::kFailed;
    outcome.pid = 0;
    record(command);
    return false;
  }
  messages::debug("{} for {}: started as pid {}", command.name(), command.occasion.id, outcome.pid);
  return true;
}

// Returns, or throws, why the command was not started or cannot be watched; empty: it runs.
std::string Commands::start(Command& command) {
  std::array<int, 2> ends{-1, -1};
  if (command.is_evidence && ::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return "cannot make a pipe for its output";
  }
  command.pipe = UniqueFd(ends[0]);
  const UniqueFd output(ends[1]);
  command.start.output = command.is_evidence ? output.get() : STDERR_FILENO;
  auto child = start_child(std::exchange(command.start, {}));
  if (!child) {
    return child.error().message;
  }
  command.child = std::move(*child);
  command.outcome.pid = command.child.pid();
  // The command sets its group as well. The server does so too, because it may signal the group
  // before the command has run.
  ::setpgid(command.child.pid(), command.child.pid());
  if (!command.child.pidfd()) {
    return "cannot open its pidfd";
  }
  command.end = watch_io(core_.loop, command.child.pidfd().get(), EPOLLIN, kOrdinary,
                         [&command] { command.end.reset(); });
  if (command.is_evidence) {
    ::fcntl(command.pipe.get(), F_SETFL, O_NONBLOCK);
    command.readable = watch_io(core_.loop, command.pipe.get(), EPOLLIN, kOrdinary,
                                [&command] { command.read_output(); });
  }
  return {};
}

bool Commands::step(Command& command, Instant now) {
  if (command.is_waiting || (command.end && now < command.next_step_at)) {
    return false;
  }
  // A server that was stopped may not have noticed yet that the command ended in time.
  if (!command.end || command.child.has_ended_within(Duration::zero())) {
    return end(command, now);
  }
  const std::string time =
      command.is_evidence
          ? duration_text(core_.settings.kill.evidence_timeout) + ", see --evidence-timeout"
          : duration_text(kHookTime);
  return end_by_kill(command, HookResult::kTimedOut, "it was killed after " + time, kEndWait, now);
}

bool Commands::end_by_kill(Command& command, HookResult result, std::string_view reason,
                           Duration wait, Instant now) {
  command.outcome.result = result;
  command.outcome.reason = reason;
  command.signal_group(SIGKILL);
  (void)command.child.has_ended_within(wait);
  return end(command, now);
}

// Kills the rest of an evidence command's group, while the number is not free yet; that of a hook
// which has ended in time lives on. A process that an evidence command has started in another group
// may hold the pipe: what that process writes later is lost.
bool Commands::end(Command& command, Instant now) {
  HookOutcome& outcome = command.outcome;
  if (command.is_evidence) {
    command.signal_group(SIGKILL);
    command.read_output();
  }
  if (command.child) {  // else there was no memory for the record
    const auto status = command.child.reap();
    if (!status && outcome.result == HookResult::kExited && !command.is_evidence) {
      command.next_step_at = now + kReapHookAgain;
      return false;
    }
    outcome.took = now - command.started;
    if (status) {
      outcome.exit_status = status->exit_status;
      outcome.signal = status->signal;
      if (outcome.result == HookResult::kExited && status->signal != 0) {
        outcome.result = HookResult::kSignalled;
      }
    }
  }
  const bool is_well = outcome.result == HookResult::kExited && outcome.exit_status == 0;
  record(command);
  messages::guard([&] {  // the record must not be written again
    messages::say(
        is_well ? messages::Level::kDebug : messages::Level::kWarning,
        fmt::format("{} for {}: {}", command.name(), command.occasion.id, outcome.text()));
  });
  return true;
}

void Commands::stop() {
  for (const auto& command : commands_) {
    command->signal_group(SIGKILL);
  }
  for (const auto& command : std::exchange(commands_, {})) {
    if (command->is_waiting) {
      drop(*command, "the server stopped");
    } else {
      (void)end_by_kill(*command, HookResult::kStopped, "the server stopped", kStopWait,
                        Instant::now());
    }
  }
}

void Commands::record(const Command& command) {
  core_.log->append_detail(
      command.is_evidence ? core_.records.evidence_command(command.occasion, command.outcome,
                                                           command.output, command.output_bytes)
                          : core_.records.hook(command.occasion, command.outcome));
}

void Commands::drop(Command& command, std::string_view why) {
  command.outcome.result = HookResult::kDropped;
  command.outcome.reason = why;
  record(command);
}

}  // namespace filetimer
