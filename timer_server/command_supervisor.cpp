// SPDX-License-Identifier: MIT
#include "timer_server/command_supervisor.hpp"

#include <unistd.h>

#include <utility>
#include <vector>

#include "timer_server/system/own_children.hpp"
#include "timer_server/system/process_tree.hpp"

namespace filetimer {
namespace {

// The time until the next attempt: to read the status of a COMMAND that is traced, to reap orphans
// after a child that its owner has not reaped yet, and to kill processes that were started since.
constexpr Duration kReapAgain = std::chrono::milliseconds{100};

}  // namespace

void CommandSupervisor::supervise(Command command) {
  command_ = std::move(command);
  end_ = watch_io(loop_, command_->pidfd(), EPOLLIN, kDeathsFirst, [this] {
    ask_at_ = {};
    end_.reset();
  });
}

bool CommandSupervisor::advance(Instant now) {
  bool has_ended = false;
  if (now >= ask_at_) {
    status_ = command_->exit_status();
    has_ended = status_.has_value();
    ask_at_ = has_ended ? Instant::never() : now + kReapAgain;
  }
  if (now >= reap_at_) {
    reap_at_ = reap_orphans(now) ? Instant::never() : now + kReapAgain;
  }
  if (now >= kill_at_) {
    kill_all();
    kill_at_ = has_killed_all_ ? Instant::never() : now + kReapAgain;
  }
  return has_ended;
}

// Finds all descendants of COMMAND, because those whose parents have ended are children of the
// server.
void CommandSupervisor::kill_all() {
  std::vector<pid_t> spared = own_children();
  std::erase(spared, command_->pid());
  const auto self = open_process(::getpid());
  if (!self) {
    return;  // no descriptors
  }
  const std::vector<Process> all = descendants_of(*self, spared);
  for (const Process& process : all) {
    process.send_signal(SIGKILL);
  }
  has_killed_all_ = all.empty();
}

}  // namespace filetimer
