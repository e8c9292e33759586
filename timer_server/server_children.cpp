// The server's children: COMMAND, the hooks of --on-expiry, and the orphans of COMMAND, which come
// to the server when their parents end.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include "timer_server/messages.hpp"
#include "timer_server/own_children.hpp"
#include "timer_server/process_tree.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

// How soon to ask again for the status of a COMMAND whose tracer has not let go of it, and to look
// for orphans behind a child that its owner has not reaped yet.
constexpr Duration kReapAgain = std::chrono::milliseconds{100};

}  // namespace

void Server::attend(Command command) {
  command_ = std::move(command);
  command_source_ = add_io(command_->pidfd(), kDeathsFirst, [this] { on_command_ended(); });
}

void Server::on_command_ended() {
  command_source_.reset();
  reap_again_ = Instant{};
}

void Server::look_after_children(Instant now) {
  if (now >= reap_again_) {
    command_status_ = command_->exit_status();
    reap_again_ = command_status_ ? Instant::never() : now + kReapAgain;
    if (command_status_) {
      carry_out(life_.handle(LifeCycle::Event::kCommandEnded, now), "COMMAND ended", {});
    }
  }
  if (now >= reap_strangers_at_) {
    reap_strangers_at_ = reap_strangers() ? Instant::never() : now + kReapAgain;
  }
  if (is_killing_command_ && !all_killed_) {
    kill_all_of_command();  // again: it may have gone on starting processes
  }
}

// All below the server but its hooks and helpers. Whose parent has ended is our child by now.
void Server::kill_all_of_command() {
  std::vector<pid_t> spared = own_children();
  std::erase(spared, command_->pid());
  const auto self = open_process(::getpid());
  if (!self) {
    return;  // no descriptors: at the next SIGCHLD
  }
  const std::vector<Process> all = companions_of(*self, KillMode::kTree, spared);
  for (const Process& process : all) {
    process.send_signal(SIGKILL);
  }
  all_killed_ = all.empty();
}

void Server::run_hook(const KillOrder& order, const KillEnd& end) {
  const Expiry& first = order.expiries.front();
  HookOccasion occasion;
  occasion.worker = order.worker;
  occasion.id = first.id;
  occasion.incident = first.incident;
  occasion.scope = first.scope.name;
  occasion.verdict = end.verdict;
  occasion.input = order.record + '\n' + end.record + '\n';
  occasion.record_number = end.record_number;
  hooks_.add(std::move(occasion), Instant::now());
}

}  // namespace filetimer
