// `timer_client run`: starts COMMAND as its child with one scope open on it, and ends as GNU
// timeout does. It is only the scope's owner: the killing is the server's, and goes on being it
// should this process be killed.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filetimer/timer_client.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/posix.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/src/pipe/pipe_transport.hpp"
#include "timer_client/src/server/meeting_place.hpp"
#include "timer_client/src/server/server_look.hpp"
#include "timer_client/src/warn_after.hpp"

namespace filetimer::cli {
namespace {

// A server that is being started is there within this time; a person is not kept waiting.
constexpr Duration kConnectPatience = std::chrono::seconds{2};

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT};

struct RunArguments {
  Place place;
  std::string scope;
  std::optional<Duration> after;
  std::optional<Duration> grace;
  std::optional<Duration> warn_after;
  int signal = SIGKILL;
};

// COMMAND is no argument of the parser (see main.cpp), so the usage line has to be told of it.
class RunFormatter final : public CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: timer_client run [OPTIONS] -- COMMAND [ARG...]\n";
  }
};

std::string base_name(const std::string& path) {
  const std::string base = path.substr(path.rfind('/') + 1);
  return base.empty() ? path : base;
}

// Blocked before anything can send them, and waited for: no handler, no lost signal, no polling.
class Signals {
 public:
  Signals() {
    // A parent that ignores SIGCHLD would have the kernel reap COMMAND, and its status be lost.
    ::signal(SIGCHLD, SIG_DFL);
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGCHLD);
    for (const int signal : kForwarded) {
      ::sigaddset(&set_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }

  [[nodiscard]] const sigset_t& before() const { return before_; }

  siginfo_t wait() const {
    siginfo_t info{};
    retry_eintr([&] { return ::sigwaitinfo(&set_, &info); });
    return info;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

// Returns the child, or the negative exit code after a line on standard error.
pid_t spawn(const std::vector<std::string>& command, const Signals& signals) {
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));  // posix_spawn does not write to it
  }
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &signals.before());
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], nullptr, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) {
    return child;
  }
  complain(system_error(fmt::format("cannot run '{}'", command[0]), error).value().message);
  return error == ENOENT ? -kExitNotFound : -kExitNotExecutable;
}

// Waits for the child's end and passes on what it should hear meanwhile.
int wait_for(pid_t child, const Signals& signals) {
  for (;;) {
    const siginfo_t info = signals.wait();
    if (info.si_signo == SIGCHLD) {
      int status = 0;
      if (retry_eintr([&] { return ::waitpid(child, &status, WNOHANG); }) == child) {
        return status;
      }
    } else if (info.si_code != SI_KERNEL) {
      // What the terminal sent (Ctrl-C) went to the whole foreground group: COMMAND has it already.
      // The pid is COMMAND's for as long as it was not waited for.
      ::kill(child, info.si_signo);
    }
  }
}

// A scope on the child. It is COMMAND that matters from here on: whatever goes wrong is said, and
// COMMAND goes on unwatched.
TimerId open_scope(TimerClient& client, const MeetingPlace& place, const RunArguments& options,
                   const std::string& name, pid_t child) {
  const auto goes_on = [](std::string_view why) {
    complain(fmt::format("COMMAND goes on unwatched: {}", why));
    return TimerId{};
  };
  // A job is not to fail because its watchdog is about to go; nor is it to be called expired when
  // it ran longer than it would have been allowed to.
  if (const std::string why = why_no_new_scopes(place); !why.empty()) {
    return goes_on(why);
  }
  ScopeOptions scope;
  scope.signal = options.signal;
  scope.grace = options.grace;
  scope.warn_after = options.warn_after;
  scope.pid = child;
  scope.whole_process = true;
  try {
    const TimerId timer = client.acquire(name, options.after.value_or(kNoDeadline), scope);
    if (!client.is_watched()) {
      complain("the timer server went away: COMMAND is watched once it is back");
    }
    return timer;
  } catch (const TimerError& error) {
    return goes_on(error.what());
  }
}

int run(const RunArguments& options, const std::vector<std::string>& command) {
  if (command.empty()) {
    complain("run: no COMMAND: expected '-- COMMAND [ARG...]' at the end");
    return kExitRunFailed;
  }
  const Duration after = options.after.value_or(kNoDeadline);
  if (!is_warn_after(options.warn_after, after)) {
    complain("--warn-after: " + why_no_warn_after(*options.warn_after, after));
    return kExitRunFailed;
  }
  const auto place = find_meeting_place(options.place.dir, options.place.fifo);
  if (!place) {
    complain(place.error().message);
    return kExitRunFailed;
  }
  const Signals signals;  // before the library can start a thread
  std::optional<TimerClient> client;
  try {
    ConnectOptions where;
    // Lines: the scope is another process's, and this one has none of its own to make a page for.
    where.transport = std::make_unique<PipeTransport>(place->pipe, place->run_folder);
    where.timeout = kConnectPatience;
    client.emplace(TimerClient::connect(std::move(where)));
  } catch (const TimerError& error) {
    complain(error.what());
    return kExitRunFailed;
  }
  if (const std::string why = why_no_pids(place->run_folder); !why.empty()) {
    complain(fmt::format("COMMAND is not started: {}", why));
    return kExitRunFailed;
  }
  const pid_t child = spawn(command, signals);
  if (child < 0) {
    return -child;
  }
  const std::string name = options.scope.empty() ? base_name(command[0]) : options.scope;
  const TimerId timer = open_scope(*client, *place, options, name, child);
  const int status = wait_for(child, signals);
  const bool in_time = client->release(timer);
  if (timer && !in_time) {
    return kExitExpired;
  }
  return WIFSIGNALED(status) ? kExitSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Command add_run(CLI::App& root, const std::vector<std::string>& command) {
  auto options = std::make_shared<RunArguments>();
  CLI::App* app = root.add_subcommand("run", "Run COMMAND, watched; end as GNU timeout does");
  app->formatter(std::make_shared<RunFormatter>());
  add_duration_option(*app, "--after", options->after, "When COMMAND expires [inf]");
  add_warn_after_option(*app, options->warn_after);
  add_scope_option(*app, options->scope, "The scope's name in records [COMMAND's file name]");
  add_signal_option(*app, options->signal);
  add_duration_option(*app, "--grace", options->grace,
                      "From that signal to SIGKILL, inf for never\n[the server's --grace]");
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client run --after 2h -- python train.py\n"
      "  timer_client run --after 90s --signal TERM --grace 10s --scope backup -- ./backup.sh\n\n"
      "Exit codes: COMMAND's own, 124 expired, 125 timer_client failed, bad usage, or a server in\n"
      "another pid namespace, 126 COMMAND is not executable, 127 COMMAND was not found,\n"
      "128+N COMMAND was ended by signal N. While the server drains or shuts down, COMMAND runs\n"
      "unwatched.");
  return {app, [options, &command] { return run(*options, command); }};
}

}  // namespace filetimer::cli
