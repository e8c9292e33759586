// SPDX-License-Identifier: MIT
#include "timer_server/system/detach.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace filetimer {
namespace {

int wait_for_report(int report, pid_t child) {
  std::array<char, 4096> text{};
  bool reported = false;
  for (;;) {
    const ssize_t got = retry_eintr([&] { return ::read(report, text.data(), text.size()); });
    if (got <= 0) {
      break;
    }
    reported = true;
    (void)!::write(STDOUT_FILENO, text.data(), static_cast<std::size_t>(got));
  }
  if (reported) {
    return 0;
  }
  int status = 0;
  retry_eintr([&] { return ::waitpid(child, &status, 0); });
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

Result<Detached> Detached::fork(std::optional<int>& parent_exit_status) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return system_error("--detach: cannot make a pipe");
  }
  UniqueFd reading(ends[0]);
  Detached detached;
  detached.report_.reset(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) {
    return system_error("--detach: cannot fork");
  }
  if (child > 0) {
    detached.report_.reset();
    parent_exit_status = wait_for_report(reading.get(), child);
  } else {
    ::setsid();
  }
  return detached;
}

void Detached::report_ready(const std::string& line) {
  // A shell that reads the output of the command, as in $(timer_server --detach), waits for the end
  // of that pipe. The server must not keep the pipe open.
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    ::dup2(null.get(), standard);
  }
  (void)!::write(report_.get(), line.data(), line.size());
  report_.reset();
}

}  // namespace filetimer
