// timer_server: the order of a start, and the exit status of each failure.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/text.hpp"
#include "timer_server/runtime_directory.hpp"
#include "timer_server/server.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/own_children.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/service_manager.hpp"

namespace {

using namespace filetimer;

// Blocks the signals that the loop reads, and those that a write raises and that would end or stop
// the server: to a closed pipe (SIGPIPE), to a file that RLIMIT_FSIZE does not let grow (SIGXFSZ),
// and to the terminal of which it is a background job (SIGTTOU, by `stty tostop`). The write fails
// then, or is done. Every thread inherits the mask.
void block_signals() {
  sigset_t blocked = signal_set({SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT,
                                 SIGCHLD, SIGPIPE, SIGXFSZ, SIGTTOU});
  // A signal that is blocked is not ignored. A shell lets its jobs in background ignore Ctrl-C.
  struct sigaction interrupt {};
  if (::sigaction(SIGINT, nullptr, &interrupt) == 0 && interrupt.sa_handler == SIG_IGN) {
    ::sigdelset(&blocked, SIGINT);
  }
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  // If the caller ignored SIGCHLD, the exit status of children would be lost.
  ::signal(SIGCHLD, SIG_DFL);
}

int fail(int status, const Settings& settings, const std::string& message) {
  std::fputs(fmt::format("timer_server: error: {}\n", printable(message)).c_str(), stderr);
  return settings.command.empty() ? status : exit_status::kServerFailed;
}

int wait_for_report(int report, pid_t child) {
  std::array<char, 4096> text{};
  bool reported = false;
  for (;;) {
    const ssize_t got = retry_eintr([&] { return ::read(report, text.data(), text.size()); });
    if (got <= 0) {
      break;
    }
    reported = true;
    (void)!::write(STDOUT_FILENO, text.data(), static_cast<std::size_t>(got));
  }
  if (reported) {
    return 0;
  }
  int status = 0;
  retry_eintr([&] { return ::waitpid(child, &status, 0); });
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// --detach: the command returns when the server is ready, or with its exit status if it cannot
// start. Forks. In the child, begins a new session and returns the descriptor for report_ready().
// In the parent, waits for the child's report, prints it, and exits. Must be called before any
// thread is started.
Result<UniqueFd> detach() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return system_error("--detach: cannot make a pipe");
  }
  const UniqueFd reading(ends[0]);
  UniqueFd report(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) {
    return system_error("--detach: cannot fork");
  }
  if (child > 0) {
    ::sigprocmask(SIG_SETMASK, &inheritance().mask, nullptr);  // a signal ends the parent
    report.reset();
    std::exit(wait_for_report(reading.get(), child));
  }
  ::setsid();
  return report;
}

// Reports the ready line to the parent, and replaces the three standard descriptors by /dev/null: a
// shell that reads the output of the command, as in $(timer_server --detach), waits for the end of
// that pipe.
void report_ready(UniqueFd report, const std::string& line) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    ::dup2(null.get(), standard);
  }
  (void)!::write(report.get(), line.data(), line.size());
}

// Begins to serve, reports that the server is ready, starts COMMAND if there is one, and serves.
// Returns the exit status.
int run_server(const Settings& settings, RuntimeDirectory& directory, UniqueFd report) {
  Server server(settings, directory);
  const std::string ready = server.ready_line() + "\n";
  if (report) {
    report_ready(std::move(report), ready);
  } else {
    (void)!::write(settings.command.empty() ? STDOUT_FILENO : STDERR_FILENO, ready.data(),
                   ready.size());
  }
  if (!settings.command.empty()) {
    // The threads that write keep it blocked. If the terminal stops COMMAND, the server has to stop
    // with it: a shell resumes only what it has seen stop.
    const sigset_t stop = signal_set({SIGTTOU});
    ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    if (const Status started = server.start_command(); !started) {
      messages::error("{}", started.error().message);
      server.withdraw();
      const int error = started.error().errno_value;
      return error == ENOENT                      ? exit_status::kNotFound
             : error == EAGAIN || error == ENOMEM ? exit_status::kServerFailed  // it was not forked
                                                  : exit_status::kNotExecutable;
    }
  }
  return server.run();
}

int serve(const Settings& settings, UniqueFd passed, UniqueFd report) {
  // All that an earlier server has left would count as of another boot.
  if (this_boot() == BootId{} && ::access(kBootIdPath, F_OK) == 0) {
    return fail(exit_status::kFailed, settings, fmt::format("cannot read '{}'", kBootIdPath));
  }
  // It would say of each pid what is true of another process, and name the children of that one.
  if (const std::string self = link_target("/proc/self");
      !self.empty() && self != fmt::format("{}", ::getpid())) {
    return fail(exit_status::kFailed, settings,
                "'/proc' is not that of the server's pid namespace");
  }
  messages::start(settings.log_level, static_cast<bool>(report));
  const auto directory = RuntimeDirectory::open(settings, std::move(passed));
  if (!directory) {
    const Error& error = directory.error();
    const int status = error.errno_value == EBUSY   ? exit_status::kAnotherServer
                       : error.errno_value == EBADF ? exit_status::kUsage  // it fails again
                                                    : exit_status::kFailed;
    return fail(status, settings, error.message);
  }
  if (settings.realtime) {
    if (Status allowed = enter_realtime(); !allowed) {
      messages::warning("{}; the server runs without it", allowed.error().message);
    }
  }
  harden();
  const int status = run_server(settings, **directory, std::move(report));
  messages::stop();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // One heap for all threads, because side threads allocate little, and a heap for each would keep
  // megabytes.
  ::mallopt(M_ARENA_MAX, 1);
  occupy_standard_descriptors();
  const auto read = read_settings(argc, argv);
  if (!read) {
    return read.error();
  }
  const Settings& settings = *read;
  (void)inheritance();
  (void)folder_of_this_program();
  auto passed = take_passed_descriptor();
  if (!passed) {
    return fail(exit_status::kUsage, settings, passed.error().message);
  }
  block_signals();
  try {
    UniqueFd report;
    if (settings.detach) {
      // A lock or a pipe of the caller must not stay open for as long as the server runs.
      ::closefrom(std::max(passed->get(), STDERR_FILENO) + 1);
      auto detached = detach();
      if (!detached) {
        return fail(exit_status::kFailed, settings, detached.error().message);
      }
      report = std::move(*detached);
    }
    return serve(settings, std::move(*passed), std::move(report));
  } catch (const std::exception& error) {
    return fail(exit_status::kFailed, settings, error.what());
  }
}
