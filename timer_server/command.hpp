// The COMMAND that a server runs as its child: started as if the server were not there, watched by
// its pidfd, signals handed on.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "common/result.hpp"
#include "timer_server/process.hpp"

namespace filetimer {

class Command {
 public:
  // COMMAND gets `mask` as its signal mask, default handling of SIGCHLD, the environment with
  // FILETIMER_DIR and TORCHELASTIC_TIMER_FILE set, and without what belongs to the server alone
  // (TORCHELASTIC_ENABLE_FILE_TIMER, NOTIFY_SOCKET, LISTEN_*, WATCHDOG_*).
  // An error carries the errno of the execution: ENOENT when there is no such command.
  static Result<Command> start(const std::vector<std::string>& words, const sigset_t& mask,
                               const std::string& dir, const std::string& pipe);

  [[nodiscard]] pid_t pid() const { return process_.pid; }
  [[nodiscard]] int pidfd() const { return process_.pidfd.get(); }
  [[nodiscard]] const Process& process() const { return process_; }

  // Once the pidfd is readable: its exit status as a shell tells it, 128+N for signal N. Nothing
  // while a tracer has not let go of it.
  [[nodiscard]] std::optional<int> exit_status() const;

  // Hands a signal on, unless the terminal has sent it to COMMAND already.
  void forward(int signal, bool from_terminal) const;

 private:
  explicit Command(Process process) : process_(std::move(process)) {}
  Process process_;
};

}  // namespace filetimer
