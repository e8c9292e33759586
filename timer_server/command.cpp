// SPDX-License-Identifier: MIT
#include "timer_server/command.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/run_folder.hpp"

extern char** environ;  // NOLINT: POSIX's own name

namespace filetimer {
namespace {

// The agent of torchrun would replace our pipe if it saw the first; the others are between the
// service manager and the server.
constexpr std::array<std::string_view, 7> kDropped{"TORCHELASTIC_ENABLE_FILE_TIMER",
                                                   "NOTIFY_SOCKET",
                                                   "WATCHDOG_USEC",
                                                   "WATCHDOG_PID",
                                                   "LISTEN_FDS",
                                                   "LISTEN_PID",
                                                   "LISTEN_FDNAMES"};

std::vector<std::string> environment_for(const std::string& dir, const std::string& pipe) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (name != kDirVariable && name != kTorchPipeVariable &&
        std::find(kDropped.begin(), kDropped.end(), name) == kDropped.end()) {
      variables.emplace_back(entry);
    }
  }
  variables.push_back(fmt::format("{}={}", kDirVariable, dir));
  variables.push_back(fmt::format("{}={}", kTorchPipeVariable, pipe));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) {
    pointers.push_back(string.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Command> Command::start(const std::vector<std::string>& words, const sigset_t& mask,
                               const std::string& dir, const std::string& pipe) {
  std::vector<std::string> arguments = words;
  std::vector<std::string> variables = environment_for(dir, pipe);
  sigset_t defaults{};
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGCHLD);

  posix_spawnattr_t attributes{};
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, arguments[0].c_str(), nullptr, &attributes,
                                   pointers_to(arguments).data(), pointers_to(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return system_error(fmt::format("cannot run '{}'", words[0]), error);
  }
  // Our child, not reaped yet: its pid is its own even if it has ended already.
  auto process = open_process(pid);
  if (!process) {
    Process ended;
    ended.pid = pid;
    ended.pidfd = open_pidfd(pid);
    return Command(std::move(ended));
  }
  return Command(std::move(*process));
}

std::optional<int> Command::exit_status() const {
  siginfo_t info{};
  const auto wait = [&] {
    return ::waitid(P_PID, static_cast<id_t>(pid()), &info, WEXITED | WNOHANG);
  };
  if (retry_eintr(wait) != 0) {
    return 125;  // somebody else has reaped our child: its status is lost
  }
  if (info.si_pid == 0) {
    return std::nullopt;
  }
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

void Command::forward(int signal, bool from_terminal) const {
  // The terminal signals its whole foreground group, and COMMAND is in ours.
  if (!from_terminal || ::getpgid(pid()) != ::getpgrp()) {
    process_.send_signal(signal);
  }
}

}  // namespace filetimer
