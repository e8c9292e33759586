// SPDX-License-Identifier: MIT
#include "timer_server/kill_path_check.hpp"

#include <fmt/format.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/proc_files.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

// A process cannot trace itself. The call on a pid that no process has fails with ESRCH where it is
// allowed, and with EPERM or ENOSYS where a filter forbids it.
bool is_ptrace_allowed() {
  constexpr pid_t kNoProcess = -1;
  return ::ptrace(PTRACE_SEIZE, kNoProcess, nullptr, nullptr) == -1 && errno == ESRCH;
}

}  // namespace

KillPath check_kill_path() {
  KillPath path;
  path.kernel_stacks = read_small_file("/proc/self/stack").has_value();
  path.ptrace = is_ptrace_allowed() && may_trace();
  Process self;
  self.pid = ::getpid();
  self.pidfd = open_pidfd(self.pid);
  if (!self.pidfd) {
    const bool was_tried = errno != EMFILE && errno != ENFILE && errno != ENOMEM;
    path.trouble = fmt::format("{}pidfd_open: {}", was_tried ? "" : "not tried: ", reason());
    if (was_tried) {
      path.signal = false;
    }
    return path;
  }
  path.signal = self.send_signal(0);
  if (!*path.signal) {
    path.trouble = fmt::format("pidfd_send_signal: {}", reason());
  }
  return path;
}

}  // namespace filetimer
