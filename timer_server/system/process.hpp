// A process, identified by its pidfd, and what /proc says about it. Nothing here blocks: files that
// take the memory lock of the process are left to worker_facts.hpp. Used on the loop thread and on
// side threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/result.hpp"

namespace filetimer {

struct Process {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // in clock ticks since boot
  uid_t uid = 0;
  std::string comm;
  pid_t ppid = 0;
  bool is_kernel_thread = false;
  std::uint64_t start_stack = 0;  // where its program's stack begins; 0: unknown
  pid_t innermost_pid = 0;        // the pid that the process has in its own pid namespace
  UniqueFd pidfd;

  // Returns when the process started, or a time before that: by at most a clock tick, and by the
  // time for which the machine was suspended since.
  [[nodiscard]] Instant started() const;
  // Returns false from the moment the process has exited, even if it was not reaped yet.
  [[nodiscard]] bool is_alive() const;
  // Sends a signal by the pidfd. Returns false with errno set if it was not sent.
  bool send_signal(int signal) const;
};

// Returns the start time of a process that starts now.
std::uint64_t start_time_now();

// Opens a pidfd, which is always close-on-exec. Returns an empty descriptor with errno set if it
// cannot be opened.
UniqueFd open_pidfd(pid_t pid);

// Opens a pidfd and reads the other members. These belong to the process of the pidfd, because that
// process is still alive after they were read. Fails with ESRCH if there is no such process, or it
// has ended.
Result<Process> open_process(pid_t pid);

// Returns whether the kernel gives each program that the process executes another address for its
// stack, so that Process::start_stack names the program. Debuggers and some sites switch that off.
bool has_random_stack(pid_t pid);

// Returns the folder of this process's program, with a slash at its end; empty if it is not known.
std::string folder_of_this_program();

// Returns the pids of the ancestors of `pid`, the parent first.
std::vector<pid_t> ancestors_of(pid_t pid);

}  // namespace filetimer
