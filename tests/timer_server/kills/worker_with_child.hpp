// A worker with a process below it, for tests of kills.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "tests/support/children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// A worker and its child, which ignores SIGTERM and outlives the worker.
struct WorkerWithChild {
  WorkerWithChild() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    worker.emplace([&] {
      const pid_t pid = fork_waiting([] {
        ::prctl(PR_SET_PDEATHSIG, 0);
        ::signal(SIGTERM, SIG_IGN);
      });
      (void)!::write(ends[1], &pid, sizeof pid);
    });
    pid_t pid = 0;
    REQUIRE(::read(ends[0], &pid, sizeof pid) == sizeof pid);
    ::close(ends[0]);
    ::close(ends[1]);
    child = std::move(*open_process(pid));
  }
  ~WorkerWithChild() { child.send_signal(SIGKILL); }
  WorkerWithChild(const WorkerWithChild&) = delete;
  WorkerWithChild& operator=(const WorkerWithChild&) = delete;
  Child* operator->() { return &*worker; }

  std::optional<Child> worker;
  Process child;
};

}  // namespace filetimer
