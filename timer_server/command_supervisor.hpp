// The children of a server: COMMAND, and the orphans of COMMAND, which come to the server when
// their parents end.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>

#include "common/clock.hpp"
#include "timer_server/command.hpp"
#include "timer_server/event_loop.hpp"

namespace filetimer {

// Notices the end of COMMAND, reaps orphans, and kills COMMAND with all that it started. A server
// without COMMAND has one, too: in a container it may be pid 1. Used on the loop thread.
class CommandSupervisor {
 public:
  explicit CommandSupervisor(sd_event* loop) : loop_(loop) {}
  CommandSupervisor(const CommandSupervisor&) = delete;
  CommandSupervisor& operator=(const CommandSupervisor&) = delete;

  // Supervises `command` from now on.
  void supervise(Command command);
  [[nodiscard]] const std::optional<Command>& command() const { return command_; }

  // SIGCHLD has come.
  void note_child_ended() {
    reap_at_ = {};
    kill_at_ = kill_at_.is_never() ? kill_at_ : Instant{};
  }
  // Kills COMMAND and all processes below the server but its hooks and helpers, in this and the
  // following advance(): they may go on starting processes.
  void kill() { kill_at_ = {}; }

  // Reaps and kills. Returns true once: when COMMAND has ended.
  bool advance(Instant now);
  // Returns when advance() has something to do; never() where only an event brings that.
  [[nodiscard]] Instant next() const { return std::min({ask_at_, reap_at_, kill_at_}); }

  // COMMAND's exit status as a shell has it, once it has ended.
  [[nodiscard]] std::optional<int> exit_status() const { return status_; }
  // False while processes are being killed: see kill().
  [[nodiscard]] bool is_done_killing() const {
    return kill_at_.is_never() && (!has_killed_all_ || status_.has_value());
  }

 private:
  void kill_all();

  sd_event* const loop_;
  std::optional<Command> command_;
  std::optional<int> status_;
  Instant ask_at_ = Instant::never();  // for its status; never(): it has not ended
  Instant reap_at_;                    // never(): at the next SIGCHLD
  Instant kill_at_ = Instant::never();
  bool has_killed_all_ = false;
  EventSource end_;  // of COMMAND
};

}  // namespace filetimer
