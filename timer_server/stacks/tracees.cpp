// SPDX-License-Identifier: MIT
#include "timer_server/stacks/tracees.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"

namespace filetimer::stacks {
namespace {

// Returns `number` as the last argument of ptrace(), which is a pointer by its type.
void* as_data(long number) {
  void* data = nullptr;
  static_assert(sizeof data == sizeof number);
  std::memcpy(&data, &number, sizeof data);
  return data;
}

}  // namespace

Status Tracees::seize() {
  int why_not = ESRCH;
  // A thread that is not seized yet may start another one: look until there is no new thread.
  for (bool found_new = true; found_new;) {
    found_new = false;
    for (const pid_t tid : threads_of(pid_)) {
      const bool is_known =
          std::ranges::any_of(tracees_, [&](const Tracee& tracee) { return tracee.tid == tid; });
      if (is_known || tracees_.size() >= kMaxEvidenceThreads) {
        continue;
      }
      if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) == 0) {
        tracees_.push_back({.tid = tid});
        found_new = true;
      } else if (errno != ESRCH) {
        why_not = errno;
      }
    }
  }
  if (tracees_.empty()) {
    return system_error(fmt::format("cannot trace pid {}", pid_), why_not);
  }
  return {};
}

void Tracees::stop(std::chrono::nanoseconds bound) {
  const Instant end = Instant::now() + bound;
  for (const Tracee& tracee : tracees_) {
    ::ptrace(PTRACE_INTERRUPT, tracee.tid, nullptr, nullptr);
  }
  sigset_t child{};
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  for (;;) {
    read_wait_statuses();
    const std::int64_t left = (end - Instant::now()).count();
    if (left <= 0 || running().empty()) {
      return;
    }
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                           static_cast<long>(left % 1'000'000'000)};
    (void)::sigtimedwait(&child, nullptr, &timeout);  // a stop raises SIGCHLD
  }
}

void Tracees::read_wait_statuses() {
  int status = 0;
  // __WALL: a thread is not waited for as a child process is.
  for (pid_t tid = 0; (tid = ::waitpid(-1, &status, __WALL | WNOHANG)) > 0;) {
    const auto found = std::ranges::find(tracees_, tid, &Tracee::tid);
    if (found == tracees_.end()) {
      continue;
    }
    if (!WIFSTOPPED(status)) {
      found->state = State::kGone;
      continue;
    }
    found->state = State::kStopped;
    // A thread stops for PTRACE_INTERRUPT, for an earlier SIGSTOP, or to report a signal that it is
    // about to get. That signal must be passed on.
    const bool is_signal = status >> 16 != PTRACE_EVENT_STOP;
    found->signal = is_signal ? WSTOPSIG(status) : 0;
  }
}

bool Tracees::release() {
  read_wait_statuses();
  for (Tracee& tracee : tracees_) {
    if (tracee.state == State::kStopped) {
      ::ptrace(PTRACE_DETACH, tracee.tid, nullptr, as_data(tracee.signal));
      tracee.state = State::kGone;
    }
  }
  return running().empty();
}

std::vector<pid_t> Tracees::stopped() const {
  std::vector<pid_t> tids;
  for (const Tracee& tracee : tracees_) {
    if (tracee.state == State::kStopped) {
      tids.push_back(tracee.tid);
    }
  }
  return tids;
}

std::vector<pid_t> Tracees::running() const {
  std::vector<pid_t> tids;
  for (const Tracee& tracee : tracees_) {
    if (tracee.state == State::kRunning) {
      tids.push_back(tracee.tid);
    }
  }
  return tids;
}

}  // namespace filetimer::stacks
