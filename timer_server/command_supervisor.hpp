// The children of a server: COMMAND, and its orphans, which are reparented to the server when their
// parents end.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/system/own_children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Starts COMMAND and notices its end, reaps orphans, and kills COMMAND with its descendants. A
// server without COMMAND reaps orphans, too, because it may be pid 1 of a container. Used on the
// loop thread.
class CommandSupervisor {
 public:
  // COMMAND inherits nothing that the server changes. Fails with the errno of execve(): ENOENT if
  // there is no such command.
  Status start(const std::vector<std::string>& words, const std::string& dir,
               const std::string& pipe);
  // Returns the pid of COMMAND, also after its end; 0: there is none.
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Forwards a signal to COMMAND, unless the terminal has sent it to COMMAND already.
  void forward(int signal, bool from_terminal) const;

  // Called with each SIGCHLD.
  void note_child_ended() {
    reap_at_ = {};
    kill_at_ = kill_at_.is_never() ? kill_at_ : Instant{};
  }
  // Makes advance() kill COMMAND and all processes below the server but its hooks, its
  // helpers and what it inherited, until none is left and COMMAND is reaped: they may start further
  // processes meanwhile.
  void kill() { kill_at_ = {}; }

  // Reaps and kills. Returns true once: when COMMAND has ended.
  bool advance(Instant now);
  // Returns when advance() has something to do; never() if only an event leads to that.
  [[nodiscard]] Instant next() const { return std::min(reap_at_, kill_at_); }

  // Returns COMMAND's exit status as a shell has it, when COMMAND has ended: 128+N for signal N.
  [[nodiscard]] std::optional<int> exit_status() const { return status_; }
  // Returns false while processes are being killed: see kill().
  [[nodiscard]] bool is_done_killing() const { return kill_at_.is_never(); }

 private:
  bool kill_all();

  OwnChild child_;  // COMMAND
  pid_t pid_ = 0;   // likewise, also after its end
  // The processes that were below the server before COMMAND: those of the shell that executed it.
  std::vector<Process> inherited_;
  std::optional<int> status_;
  Instant reap_at_;  // COMMAND and orphans; never(): at the next SIGCHLD
  Instant kill_at_ = Instant::never();
};

}  // namespace filetimer
