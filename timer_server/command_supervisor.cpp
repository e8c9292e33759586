// SPDX-License-Identifier: MIT
#include "timer_server/command_supervisor.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <utility>

namespace filetimer {
namespace {

// The time until the next attempt: to reap orphans after a child that its owner has not reaped yet,
// and to kill processes that were started since.
constexpr Duration kReapAgain = std::chrono::milliseconds{100};

}  // namespace

Status CommandSupervisor::start(const std::vector<std::string>& words, const std::string& dir,
                                const std::string& pipe) {
  // Orphans of COMMAND are reparented to the server and not to init, so that the server can reap
  // them and find them when COMMAND is killed.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (const auto server = open_process(::getpid())) {
    inherited_ = descendants_of(*server, {}, own_children());
  }
  auto child = start_child(
      {.words = words, .environment = environment_for_children(dir, pipe), .waits = true});
  FILETIMER_TRY(child);
  child_ = std::move(*child);
  pid_ = child_.pid();
  return {};
}

void CommandSupervisor::forward(int signal, bool from_terminal) const {
  // The terminal signals its whole foreground group, which includes COMMAND. When it hangs up, only
  // the leader of its session gets the signal.
  if (!from_terminal || signal == SIGHUP || ::getpgid(pid()) != ::getpgrp()) {
    child_.kill(signal);
  }
}

bool CommandSupervisor::advance(Instant now) {
  bool has_ended = false;
  if (now >= reap_at_) {
    // Nothing while a tracer holds the process: SIGCHLD comes when the tracer lets go of it.
    if (const auto end = child_ ? child_.reap() : std::nullopt) {
      constexpr int kLost = 125;  // the child was reaped elsewhere, and its status is lost
      status_ = end->signal != 0 ? 128 + end->signal : end->exit_status.value_or(kLost);
      has_ended = true;
    }
    reap_at_ = reap_orphans(now) ? Instant::never() : now + kReapAgain;
  }
  if (now >= kill_at_) {
    kill_at_ = kill_all() && status_ ? Instant::never() : now + kReapAgain;
  }
  return has_ended;
}

// Finds all descendants of COMMAND, because those whose parents have ended are children of the
// server. Returns whether there are none.
bool CommandSupervisor::kill_all() {
  std::vector<pid_t> spared = own_children();
  std::erase(spared, pid());
  for (const Process& process : inherited_) {
    if (process.is_alive()) {
      spared.push_back(process.pid);
    }
  }
  const auto self = open_process(::getpid());
  if (!self) {
    return false;  // no descriptors
  }
  const std::vector<Process> all = descendants_of(*self, {}, spared);
  for (const Process& process : all) {
    process.send_signal(SIGKILL);
  }
  return all.empty();
}

}  // namespace filetimer
