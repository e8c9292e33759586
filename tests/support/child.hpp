// A child process of a test that waits until it is killed, and is gone when the object is.
// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "common/posix.hpp"
#include "timer_server/process.hpp"

namespace filetimer {

// Forks a process that runs `before` and then `wait` for ever; its pid, once `before` is done.
inline pid_t fork_waiting(
    const std::function<void()>& before, const std::function<void()>& wait = [] { ::pause(); }) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    throw std::runtime_error("pipe");
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    // A test that crashes runs no destructor; a child left over would hold CTest's pipe open.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    before();
    (void)!::write(ends[1], "!", 1);
    ::close(ends[0]);
    ::close(ends[1]);
    for (;;) {
      wait();
    }
  }
  ::close(ends[1]);
  char byte = 0;
  (void)!::read(ends[0], &byte, 1);
  ::close(ends[0]);
  return pid;
}

class Child {
 public:
  // Runs `before` in the child, then waits for ever. Returns when `before` is done.
  explicit Child(const std::function<void()>& before = [] {}) : pid_(fork_waiting(before)) {}
  Child(const std::function<void()>& before, const std::function<void()>& wait)
      : pid_(fork_waiting(before, wait)) {}
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] Process process() const { return std::move(*open_process(pid_)); }

  // It may still be on its way into its wait when the constructor returns.
  void wait_until_asleep() const {
    for (auto stat = read_stat(proc()); stat && stat->state != 'S'; stat = read_stat(proc())) {
      ::sched_yield();
    }
  }

  // Kills and reaps it; the signal that ended it.
  int end() {
    if (pid_ <= 0) {
      return 0;
    }
    ::kill(pid_, SIGKILL);
    return reap();
  }
  int reap() {
    int status = 0;
    retry_eintr([&] { return ::waitpid(pid_, &status, 0); });
    pid_ = 0;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  [[nodiscard]] std::string proc() const { return "/proc/" + std::to_string(pid_); }
  pid_t pid_ = 0;
};

}  // namespace filetimer
