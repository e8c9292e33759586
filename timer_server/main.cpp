// timer_server: the order of a start, and the exit status of each failure.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "common/boot.hpp"
#include "common/posix.hpp"
#include "timer_server/runtime_directory.hpp"
#include "timer_server/server.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/command.hpp"
#include "timer_server/system/detach.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/inheritance.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/realtime.hpp"
#include "timer_server/system/service_manager.hpp"

namespace {

using namespace filetimer;

// Blocks the signals that the loop reads, and SIGPIPE, which a write to a closed pipe must not
// raise. Every thread inherits the mask.
void block_signals() {
  sigset_t blocked{};
  ::sigemptyset(&blocked);
  for (const int signal :
       {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD, SIGPIPE}) {
    ::sigaddset(&blocked, signal);
  }
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  // If the caller ignored SIGCHLD, the exit status of children would be lost.
  ::signal(SIGCHLD, SIG_DFL);
}

int fail(int status, const Settings& settings, const std::string& message) {
  std::fputs(fmt::format("timer_server: error: {}\n", message).c_str(), stderr);
  return settings.command.empty() ? status : exit_status::kServerFailed;
}

// Reports that the server is ready, starts COMMAND if there is one, and serves. Returns the exit
// status.
int run_server(Server& server, const Settings& settings, const Inheritance& inheritance,
               const RuntimeDirectory& directory, Detached* detached) {
  const std::string ready = server.ready_line() + "\n";
  if (detached != nullptr) {
    detached->report_ready(ready);
  } else {
    (void)!::write(settings.command.empty() ? STDOUT_FILENO : STDERR_FILENO, ready.data(),
                   ready.size());
  }
  if (!settings.command.empty()) {
    auto command =
        Command::start(settings.command, inheritance, directory.path(), directory.pipe().path());
    if (!command) {
      messages::error("{}", command.error().message);
      server.withdraw();
      return command.error().errno_value == ENOENT ? exit_status::kNotFound
                                                   : exit_status::kNotExecutable;
    }
    server.supervise(std::move(*command));
  }
  return server.run();
}

int serve(const Settings& settings, Inheritance inheritance, UniqueFd passed, Detached* detached) {
  // All that an earlier server has left would count as of another boot.
  if (this_boot() == BootId{} && ::access(kBootIdPath, F_OK) == 0) {
    return fail(exit_status::kFailed, settings, fmt::format("cannot read '{}'", kBootIdPath));
  }
  auto directory = RuntimeDirectory::take(settings);
  if (!directory) {
    return fail(directory.error().status, settings, directory.error().message);
  }
  auto log = directory->open(settings, std::move(passed));
  if (!log) {
    directory->clean_up();
    return fail(log.error().status, settings, log.error().message);
  }
  messages::start(settings.log_level, detached != nullptr);
  directory->warn_about_place();
  if (settings.realtime) {
    if (Status allowed = enter_realtime(); !allowed) {
      messages::warning("{}; the server runs without it", allowed.error().message);
    }
  }
  harden(inheritance);
  int status = exit_status::kFailed;
  try {
    Server server(settings, *directory, std::move(*log), inheritance);
    status = run_server(server, settings, inheritance, *directory, detached);
  } catch (...) {
    directory->clean_up();
    throw;
  }
  directory->clean_up();
  messages::stop();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // One heap for all threads, because side threads allocate little, and a heap for each would keep
  // megabytes.
  ::mallopt(M_ARENA_MAX, 1);
  occupy_standard_descriptors();
  auto read = read_settings(argc, argv);
  if (const auto* early = std::get_if<EarlyExit>(&read)) {
    return early->status;
  }
  const Settings& settings = std::get<Settings>(read);
  const Inheritance inheritance = Inheritance::of_this_process();
  auto passed = take_passed_descriptor();
  if (!passed) {
    return fail(exit_status::kUsage, settings, passed.error().message);
  }
  block_signals();
  try {
    if (settings.detach) {
      std::optional<int> parent_exit_status;
      auto detached = Detached::fork(parent_exit_status);
      if (!detached) {
        return fail(exit_status::kFailed, settings, detached.error().message);
      }
      if (parent_exit_status) {
        return *parent_exit_status;
      }
      return serve(settings, inheritance, std::move(*passed), &*detached);
    }
    return serve(settings, inheritance, std::move(*passed), nullptr);
  } catch (const std::exception& error) {
    return fail(exit_status::kFailed, settings, error.what());
  }
}
