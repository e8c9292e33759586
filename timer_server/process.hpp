// A process held by its pidfd, so that a recycled pid can never be taken for it, and what
// /proc/PID/stat says of it. Everything here is quick: no file is read that takes the memory lock
// of the process (see worker_facts.hpp for those). Called on the loop thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/result.hpp"

namespace filetimer {

struct Process {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  uid_t uid = 0;
  std::string comm;
  pid_t ppid = 0;
  pid_t pgrp = 0;
  std::uint64_t start_stack = 0;  // of the program it runs; 0: not known
  pid_t innermost_pid = 0;        // in the pid namespace that it lives in
  UniqueFd pidfd;

  // False from the moment the process ended, also while it waits to be reaped.
  [[nodiscard]] bool is_alive() const;
  // pidfd_send_signal; false with errno set.
  bool send_signal(int signal) const;
};

// Empty with errno set when there is no such process.
UniqueFd open_pidfd(pid_t pid);

// Opens a pidfd and reads who that is. What was read belongs to the process the pidfd holds: the
// process is still alive after the reading. Fails with ESRCH when there is none, or it has ended.
Result<Process> open_process(pid_t pid);

// The pids of the processes above `pid` up to 1, nearest first.
std::vector<pid_t> ancestors_of(pid_t pid);

}  // namespace filetimer
