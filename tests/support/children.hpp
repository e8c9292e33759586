// Child processes of a test, which are killed and reaped with their objects: one that waits until
// it is killed, and one that runs its steps one by one, such as holding a lock.
// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "tests/support/bound.hpp"

namespace filetimer {

// In a new child: makes it end with its parent, even if that has ended already. A test that crashes
// runs no destructor, and a child that is left would hold CTest's pipe open.
inline void end_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);
  }
}

// Forks a process that runs `before` and then `wait` repeatedly. Returns its pid after `before`.
inline pid_t fork_waiting(
    const std::function<void()>& before, const std::function<void()>& wait = [] { ::pause(); }) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    throw std::runtime_error("pipe");
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    end_with(parent);
    ::signal(SIGTERM, SIG_DFL);  // doctest installs a handler
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

// Waits until the child is a zombie, and returns whether it is. Does not reap it.
inline bool wait_for_zombie(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0;
}

// Returns whether the process is a child that was not reaped.
inline bool is_our_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

class HeldChild {
 public:
  explicit HeldChild(pid_t pid) : pid_(pid) {}
  ~HeldChild() { end(); }
  HeldChild(const HeldChild&) = delete;
  HeldChild& operator=(const HeldChild&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Kills and reaps the process. Returns the signal that ended it.
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
  pid_t pid_;
};

class Child : public HeldChild {
 public:
  // Starts a child that runs `before` and then waits until it is killed. Returns after `before`.
  explicit Child(const std::function<void()>& before = [] {}) : HeldChild(fork_waiting(before)) {}
  Child(const std::function<void()>& before, const std::function<void()>& wait)
      : HeldChild(fork_waiting(before, wait)) {}

  // The child may not have begun to wait when the constructor returns.
  void wait_until_asleep() const {
    const std::string proc = "/proc/" + std::to_string(pid());
    for (auto stat = read_stat(proc); stat && stat->state != 'S'; stat = read_stat(proc)) {
      ::sched_yield();
    }
  }
};

// Connected sockets.
struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
  SocketPair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::runtime_error("socketpair");
    }
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
};

// A child that runs the next of its steps when next() is called.
class SteppedChild : SocketPair, public HeldChild {
 public:
  using Step = std::function<bool()>;

  explicit SteppedChild(const std::vector<Step>& steps)
      : HeldChild(fork_waiting([&] { ours.reset(); },
                               [&, next = std::size_t{0}]() mutable {
                                 char byte = 0;
                                 if (next == steps.size() || ::read(theirs.get(), &byte, 1) != 1) {
                                   ::pause();
                                   return;
                                 }
                                 byte = steps[next++]() ? 'y' : 'n';
                                 (void)!::write(theirs.get(), &byte, 1);
                               })) {
    theirs.reset();
  }

  // Runs the next step and returns its result; false: the child did not answer, as after an exec.
  bool next() {
    char byte = '?';
    return ::write(ours.get(), "?", 1) == 1 && is_readable_within(ours.get(), testing::kBound) &&
           ::read(ours.get(), &byte, 1) == 1 && byte == 'y';
  }
};

}  // namespace filetimer
