// `timer_client run`: starts COMMAND as its child with one scope open on it, and ends as GNU
// timeout does. The scope is a timer on the pipe, because it belongs to another process; the server
// keeps it if this process is killed.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filetimer/timer_client.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/scope_terms.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

// How long to wait for a server that is being started: short enough for a person at a terminal.
constexpr Duration kConnectPatience = std::chrono::seconds{2};
// The pause between attempts to send the scope to a server while COMMAND runs.
constexpr timespec kSendPause{.tv_sec = 0, .tv_nsec = 100'000'000};
// How long the record of a kill is waited for: a server has it in its log within a second.
constexpr Duration kRecordPatience = std::chrono::seconds{1};
constexpr Duration kRecordPause = std::chrono::milliseconds{10};

// The signals that are not passed on to COMMAND: those that stop a process, those that only tell of
// something, and those of a fault of this process. If the terminal stops COMMAND, this process has
// to stop with it: a shell resumes only what it has seen stop.
constexpr int kKept[] = {SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGURG,  SIGWINCH, SIGKILL,
                         SIGILL,  SIGTRAP, SIGABRT, SIGBUS,  SIGFPE,  SIGSEGV, SIGSYS};

// Adds COMMAND to the usage line, because COMMAND is not an argument of the parser (see main.cpp).
class RunFormatter final : public CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: timer_client run [OPTIONS] -- COMMAND [ARG...]\n";
  }
};

// The signals that this process waits for. They are blocked before COMMAND starts, so none is lost,
// and no handler or polling is needed.
class Signals {
 public:
  Signals() {
    // If the parent ignores SIGCHLD, the kernel would reap COMMAND, and its status would be lost.
    ::signal(SIGCHLD, SIG_DFL);
    ::sigfillset(&set_);
    for (const int signal : kKept) {
      ::sigdelset(&set_, signal);
    }
    ::sigaddset(&set_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }

  [[nodiscard]] const sigset_t& before() const { return before_; }

  // Returns the next signal; si_signo 0: none was sent within `patience`, unless that is null.
  siginfo_t wait(const timespec* patience) const {
    siginfo_t info{};
    const int signal = retry_eintr([&] { return ::sigtimedwait(&set_, &info, patience); });
    return signal > 0 ? info : siginfo_t{};
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

// Returns the child's pid. On failure writes a line on standard error, and returns the negative
// exit code.
pid_t spawn(const std::vector<std::string>& command, const Signals& signals) {
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));  // execvp() does not write to it
  }
  argv.push_back(nullptr);
  volatile int error = 0;  // the child has this memory until it runs COMMAND
  const pid_t child = ::vfork();
  if (child == 0) {
    ::pthread_sigmask(SIG_SETMASK, &signals.before(), nullptr);
    ::execvp(argv[0], argv.data());  // gives a script without `#!` to the shell
    error = errno;
    ::_exit(kExitNotFound);
  }
  if (child > 0 && error == 0) {
    return child;
  }
  const int why = child < 0 ? errno : error;  // the child is reaped when this process exits
  complain(system_error(fmt::format("cannot run '{}'", command[0]), why).value().message);
  return why == ENOENT                    ? -kExitNotFound
         : why == EAGAIN || why == ENOMEM ? -kExitRunFailed  // it was not forked
                                          : -kExitNotExecutable;
}

// Returns readers of the files of the kills that are under way.
std::vector<LogReader> kill_files(const std::string& run_folder) {
  std::vector<LogReader> files;
  const std::string folder = fmt::format("{}/{}", run_folder, kKillsName);
  Directory names(folder);
  while (const char* const name = names.next()) {
    const std::string path = fmt::format("{}/{}", folder, name);
    files.emplace_back(path, open_file(path.c_str(), O_RDONLY | O_NOFOLLOW));
  }
  return files;
}

// What distinguishes the id of the scope of COMMAND from those of scopes that COMMAND opens.
constexpr std::string_view kMark = "#process";

// What records say of the verdict on a scope.
struct Verdict {
  std::string id;                  // empty: there is none
  std::string file;                // where it is
  std::optional<bool> has_killed;  // nothing: the outcome is missing
  // Whether some record is of the boot that this process sees; nothing: there is no record.
  std::optional<bool> is_of_this_boot{};
};

// Returns false for the file of a kill that has sent no signal: evidence is still gathered for it.
bool may_be_signalled(const std::string& file) {
  const std::string text = read_small_file(file, std::string::npos).value_or("");
  return text.find(R"({"stage":"judged")") == text.npos ||
         text.find(R"({"stage":"signalled")") != text.npos;
}

// The whole-process scope of COMMAND: opened once a server reads the pipe, and released at the end
// of COMMAND. Failures of the watchdog are reported and do not end COMMAND.
class ProcessScope {
 public:
  // `place` must outlive the scope.
  ProcessScope(const ServerLocation& place, const TimerOptions& options, std::string_view name,
               pid_t child)
      : place_(place),
        name_(bounded_scope_name(valid_utf8(name))),
        // COMMAND may itself open a scope of this name. The id must begin with the name, so it is
        // no more than that if the name is long.
        id_(name_.size() + kMark.size() > kMaxScopeNameBytes ? name_ : name_ + std::string(kMark)),
        dir_(place.run_folder == locate_server("").run_folder ? "" : place.run_folder),
        opened_(Instant::now()),
        timeout_(options.timeout.value_or(kForever)),
        request_(acquire_request(options.timeout.value_or(kForever), id_,
                                 {.pid = child,
                                  .signal = options.signal,
                                  .grace = options.grace,
                                  .warn_after = options.warn_after})) {
    request_.x_scope = name_;
    request_.x_whole_process = true;
  }

  [[nodiscard]] bool is_sent() const { return is_sent_; }
  // The wall clock may have been set since the last attempt, so the deadline is computed anew.
  void send() {
    const Duration left = timeout_ == kForever ? kForever : timeout_ - (Instant::now() - opened_);
    request_.expiration_time = acquire_request(left, id_, {}).expiration_time;
    is_sent_ = send(request_);
  }
  // Tries once: the server learns of the end of COMMAND, too.
  void release() const { (void)(is_sent_ && send(release_request(id_, request_.pid))); }
  // Returns whether COMMAND, which ended with `status`, was ended by the server because the scope
  // had expired, and says so on standard error. The server's records know. Without a log, COMMAND
  // was if it died past the deadline of SIGKILL or of the scope's signal.
  [[nodiscard]] bool was_killed(int status) const {
    const Duration timeout = std::min(timeout_, look_for_server(place_.run_folder).max_timeout);
    if (!is_sent_ || Instant::now() < opened_ + timeout) {
      return false;
    }
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const bool may_be_killed = signal != 0 && (signal == SIGKILL || signal == request_.signal);
    const std::optional<std::string> id = id_of_kill(may_be_killed);
    const bool is_killed = id ? !id->empty() : may_be_killed;
    if (is_killed) {
      complain(fmt::format("'{}' expired after {}{}", name_, duration_text(timeout),
                           id ? fmt::format(": 'timer_client show {}{}' says more", *id,
                                            dir_.empty() ? "" : " --dir " + dir_)
                              : ""));
    }
    return is_killed;
  }

 private:
  // Returns the id of the verdict that ended COMMAND; empty: there is none; nothing: there is no
  // log, or in a container one of another boot id. If the outcome does not come, descendants of
  // COMMAND have not died yet, or it ended by itself before the first signal. `waits`: a verdict
  // may still come.
  [[nodiscard]] std::optional<std::string> id_of_kill(bool waits) const {
    for (const Instant until = Instant::now() + kRecordPatience;;
         std::this_thread::sleep_for(kRecordPause)) {
      const bool is_last =
          Instant::now() >= until || !wait_for_server(place_.pipe, Duration::zero()).empty();
      // The file of a kill has its records until they are in the log, which may be full or hang.
      std::vector<LogReader> logs = kill_files(place_.run_folder);
      Verdict verdict = verdict_in(logs);
      if (verdict.id.empty()) {
        logs = place_.run_folder.empty() ? std::vector<LogReader>{}
                                         : open_logs(place_.run_folder, {}).logs;
        verdict = verdict_in(logs);
        if (logs.empty() || verdict.is_of_this_boot == false) {
          return std::nullopt;
        }
      }
      if ((verdict.id.empty() && !waits) || verdict.has_killed || is_last) {
        const bool is_killed = verdict.has_killed.value_or(waits || may_be_signalled(verdict.file));
        return is_killed ? verdict.id : std::string();
      }
    }
  }

  [[nodiscard]] Verdict verdict_in(std::vector<LogReader>& logs) const {
    Verdict verdict;
    const std::string boot = boot_id_text(this_boot());
    for (LogReader& log : logs) {
      while (const Record* const record = log.next()) {
        verdict.is_of_this_boot = verdict.is_of_this_boot == true || record->boot_id == boot;
        if (record->pid != request_.pid || record->scope != name_ || record->boot_id != boot ||
            record->mono_ns < opened_.ns) {
          continue;
        }
        if (record->event == "expired") {
          verdict.id = record->id;
          verdict.file = log.path();
        } else if (record->event == "killed") {
          const std::string outcome = record->text("verdict");
          // A spared one with a signal has survived that for --kill-wait, and may end of it later.
          verdict.has_killed = outcome == "dead" || outcome == "unkillable" ||
                               !elements_at(record->fields, "signals").empty();
        }
      }
    }
    return verdict;
  }

  // Returns whether the request is in the pipe. Sends nothing if the server, or the last one, is in
  // another pid namespace, where the pid names another process.
  [[nodiscard]] bool send(const wire::Request& request) const {
    return why_no_pids(place_.run_folder).empty() &&
           send_request(place_.pipe, request) == Sent::kYes;
  }

  const ServerLocation& place_;
  std::string name_;
  std::string id_;
  std::string dir_;  // what --dir of `show` names; empty: nothing
  Instant opened_;
  Duration timeout_;
  wire::Request request_;  // points to the names
  bool is_sent_ = false;
};

// Returns whether a signal is not to be passed on to COMMAND. On Ctrl-C the terminal signals the
// whole foreground group, which includes COMMAND unless that has left it.
bool is_for_run_alone(const siginfo_t& info, pid_t child) {
  return info.si_code == SI_KERNEL && (info.si_signo == SIGINT || info.si_signo == SIGQUIT) &&
         ::getpgid(child) == ::getpgrp();
}

// Waits for the end of the child and passes signals on to it. Meanwhile sends the request of
// `scope` until a server has it; null: COMMAND is not watched.
int wait_for(pid_t child, const Signals& signals, ProcessScope* scope) {
  for (;;) {
    const bool must_send = scope != nullptr && !scope->is_sent();
    const siginfo_t info = signals.wait(must_send ? &kSendPause : nullptr);
    if (info.si_signo == SIGCHLD) {
      int status = 0;
      if (retry_eintr([&] { return ::waitpid(child, &status, WNOHANG); }) == child) {
        return status;
      }
    } else if (info.si_signo != 0 && !is_for_run_alone(info, child)) {
      // The pid is COMMAND's until waitpid() has returned it.
      ::kill(child, info.si_signo);
    }
    if (must_send) {
      scope->send();
    }
  }
}

int exit_status_of(int status) {
  return WIFSIGNALED(status) ? kExitSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

// Returns whether COMMAND is started: a server reads the pipe, or $FILETIMER_MISSING says that none
// is needed. Otherwise says why not on standard error.
bool has_server(const ServerLocation& place) {
  using Missing = ConnectOptions::Missing;
  const auto missing = missing_by_environment();
  const Duration patience = missing == Missing::kWait ? ConnectOptions{}.timeout.value()
                            : missing                 ? Duration::zero()
                                                      : kConnectPatience;
  if (const std::string why = wait_for_server(place.pipe, patience); !why.empty()) {
    complain(why);
    return missing == Missing::kIgnore;
  }
  client_messages::info("connected to the timer server at '{}'", place.pipe);
  return true;
}

int run(const TimerOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) {
    return failed("run: no COMMAND: expected '-- COMMAND [ARG...]' at the end", kExitRunFailed);
  }
  const Duration after = options.timeout.value_or(kForever);
  if (!is_warn_after(options.warn_after, after)) {
    return failed("--warn-after: " + why_no_warn_after(*options.warn_after, after), kExitRunFailed);
  }
  const ServerLocation place = locate_server(options.place.dir, options.place.fifo);
  const bool is_off = is_switched_off();
  if (!is_off) {
    if (!has_server(place)) {
      return kExitRunFailed;
    }
    std::string why = why_no_pids(place.run_folder);
    if (why.empty()) {  // COMMAND has the user of this process
      why = why_of_other_user(::getpid(), look_for_server(place.run_folder).pid);
    }
    if (!why.empty()) {
      return failed(fmt::format("COMMAND is not started: {}", why), kExitRunFailed);
    }
  }
  const Signals signals;
  const pid_t child = spawn(command, signals);
  if (child < 0) {
    return -child;
  }
  const std::string name =
      options.scope.empty() ? command[0].substr(command[0].rfind('/') + 1) : options.scope;
  std::optional<ProcessScope> scope;
  // A job must not fail because its server is about to end. An unwatched COMMAND is not reported as
  // expired, however long it ran.
  if (const std::string why = why_no_new_scopes(place); !is_off && !why.empty()) {
    complain(fmt::format("COMMAND runs unwatched: {}", why));
  } else if (!is_off) {
    scope.emplace(place, options, name, child);
    scope->send();
    if (!scope->is_sent()) {
      complain("COMMAND is watched once a timer server runs");
    }
  }
  const int status = wait_for(child, signals, scope ? &*scope : nullptr);
  if (scope) {
    scope->release();
  }
  return scope && scope->was_killed(status) ? kExitExpired : exit_status_of(status);
}

}  // namespace

Command add_run(CLI::App& root, const std::vector<std::string>& command) {
  auto options = std::make_shared<TimerOptions>();
  CLI::App* app = root.add_subcommand("run", "Run COMMAND, watched; end as GNU timeout does");
  app->formatter(std::make_shared<RunFormatter>());
  add_timeout_options(*app, *options, "When COMMAND expires [inf]");
  add_name_option(*app, "--scope", options->scope, "NAME",
                  "The scope's name in records [COMMAND's file name]");
  add_signal_option(*app, options->signal);
  add_duration_option(*app, "--grace", options->grace,
                      "From that signal to SIGKILL; inf: never\n[the server's --grace]");
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client run --timeout 2h -- python train.py\n"
      "  timer_client run --timeout 90s --signal TERM --grace 10s --scope backup -- ./backup.sh\n\n"
      "Exit codes: COMMAND's own, 124 it expired, 125 no server, a server in another\n"
      "pid namespace, bad usage or another failure, 126 COMMAND is not executable, 127 COMMAND\n"
      "was not found, 128+N COMMAND was ended by signal N. While the server drains or shuts\n"
      "down, COMMAND runs unwatched.");
  return {app, [options, &command] { return run(*options, command); }};
}

}  // namespace filetimer::cli
