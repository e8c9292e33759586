// SPDX-License-Identifier: MIT
#include "timer_server/system/command.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace filetimer {

Result<Command> Command::start(const std::vector<std::string>& words,
                               const Inheritance& inheritance, const std::string& dir,
                               const std::string& pipe) {
  // Orphans of COMMAND are reparented to the server and not to init, so that the server can reap
  // them and find them when COMMAND is killed.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ChildStart start;
  start.words = words;
  start.environment = environment_for_children(dir, pipe);
  UniqueFd failure;
  auto child = start_child(start, inheritance, &failure);
  if (!child) {
    return tl::unexpected<Error>(std::move(child.error()));
  }
  int error = 0;
  if (retry_eintr([&] { return ::read(failure.get(), &error, sizeof error); }) > 0) {
    child->wait();
    return system_error(fmt::format("cannot run '{}'", words[0]), error);
  }
  // The child was not reaped yet, so its pid is not reused even if it has ended.
  auto process = open_process(child->pid());
  if (!process) {
    Process ended;
    ended.pid = child->pid();
    ended.pidfd = open_pidfd(child->pid());
    return Command(std::move(*child), std::move(ended));
  }
  return Command(std::move(*child), std::move(*process));
}

std::optional<int> Command::exit_status() {
  const auto end = child_.reap();
  if (!end) {
    return std::nullopt;
  }
  constexpr int kLost = 125;  // the child was reaped elsewhere, and its status is lost
  return end->signal != 0 ? 128 + end->signal : end->exit_status.value_or(kLost);
}

void Command::forward(int signal, bool from_terminal) const {
  // The terminal signals its whole foreground group, which includes COMMAND. When it hangs up, only
  // the leader of its session gets the signal.
  if (!from_terminal || signal == SIGHUP || ::getpgid(pid()) != ::getpgrp()) {
    process_.send_signal(signal);
  }
}

}  // namespace filetimer
