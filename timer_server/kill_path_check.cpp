// SPDX-License-Identifier: MIT
#include "timer_server/kill_path_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/result.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/own_children.hpp"
#include "timer_server/process.hpp"

namespace filetimer {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

bool ends_within(const UniqueFd& pidfd, Duration bound) {
  pollfd poll{pidfd.get(), POLLIN, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(bound).count();
  return retry_eintr([&] { return ::poll(&poll, 1, static_cast<int>(ms)); }) > 0;
}

}  // namespace

KillPath check_kill_path() {
  KillPath path;
  // The child waits for the end of this pipe: where it can't be killed it still ends, with us at
  // the latest.
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    path.trouble = fmt::format("not tried: cannot make a pipe: {}", reason());
    return path;
  }
  const UniqueFd waited_for(ends[0]);
  UniqueFd held(ends[1]);
  OwnChild child = OwnChild::start([&] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(held.get());
      char byte = 0;
      (void)!::read(waited_for.get(), &byte, 1);
      ::_exit(0);
    }
    return pid;
  });
  if (!child) {
    path.trouble = fmt::format("not tried: cannot fork: {}", reason());
    return path;
  }
  path.signal = false;
  Process process;
  process.pid = child.pid();
  process.pidfd = open_pidfd(process.pid);
  if (!process.pidfd) {
    path.trouble = fmt::format("pidfd_open: {}", reason());
    return path;
  }
  const std::string folder = fmt::format("/proc/{}", process.pid);
  path.kernel_stacks = read_small_file(folder + "/stack").has_value();
  path.ptrace = ::ptrace(PTRACE_SEIZE, process.pid, nullptr, nullptr) == 0 && may_trace();
  if (!process.send_signal(0) || !process.send_signal(SIGKILL)) {
    path.trouble = fmt::format("pidfd_send_signal: {}", reason());
    return path;
  }
  if (!ends_within(process.pidfd, kDeathLimit)) {
    path.trouble = "a process of our own that was sent SIGKILL did not die";
    return path;
  }
  path.signal = true;
  return path;
}

}  // namespace filetimer
