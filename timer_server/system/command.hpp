// The COMMAND that a server runs as its child. COMMAND inherits nothing that the server changes; a
// pidfd reports its end, and signals are forwarded to it.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/result.hpp"
#include "timer_server/system/inheritance.hpp"
#include "timer_server/system/own_children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

class Command {
 public:
  // Fails with the errno of execve(): ENOENT if there is no such command.
  static Result<Command> start(const std::vector<std::string>& words,
                               const Inheritance& inheritance, const std::string& dir,
                               const std::string& pipe);

  [[nodiscard]] pid_t pid() const { return process_.pid; }
  [[nodiscard]] int pidfd() const { return process_.pidfd.get(); }
  [[nodiscard]] const Process& process() const { return process_; }

  // Returns the exit status of COMMAND as a shell does: 128+N for signal N. Called when the pidfd
  // is readable. Returns nothing while a tracer holds the process. Not called again after it has
  // returned a status.
  [[nodiscard]] std::optional<int> exit_status();

  // Forwards a signal, unless the terminal has sent it to COMMAND already.
  void forward(int signal, bool from_terminal) const;

 private:
  Command(OwnChild child, Process process)
      : child_(std::move(child)), process_(std::move(process)) {}
  OwnChild child_;
  Process process_;
};

}  // namespace filetimer
