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
#include "common/result.hpp"

namespace filetimer {

// Fields of /proc/PID/stat, see proc(5).
struct ProcStat {
  pid_t pid = 0;
  std::string comm;
  char state = '?';
  pid_t ppid = 0;
  pid_t pgrp = 0;
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::int64_t rss_pages = 0;
  std::uint64_t start_stack = 0;  // 0: not for us to see
};

// Reads `PATH/stat`, PATH being /proc/PID or /proc/PID/task/TID.
Result<ProcStat> read_stat(const std::string& path);
// A whole small file of /proc, at most `limit` bytes.
Result<std::string> read_small_file(const std::string& path, std::size_t limit = 16384);

struct Process {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  uid_t uid = 0;
  std::string comm;
  pid_t ppid = 0;
  pid_t pgrp = 0;
  std::uint64_t start_stack = 0;  // of the program it runs; 0: not known
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
