// What the kernel says of a process in the files of /proc that can be read at once: none of these
// takes the memory lock of the process.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

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
  int threads = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::int64_t rss_pages = 0;
  std::uint64_t start_stack = 0;  // 0: not for us to see
};

// Reads `PATH/stat`, PATH being /proc/PID or /proc/PID/task/TID.
Result<ProcStat> read_stat(const std::string& path);
// A whole small file of /proc, at most `limit` bytes.
Result<std::string> read_small_file(const std::string& path, std::size_t limit = 16384);

// The threads of a process: the main one first, then by number. None when it has ended.
std::vector<pid_t> threads_of(pid_t pid);
// Returns the processes that a thread has started and that are there. None where it has ended, or
// the kernel does not tell (CONFIG_PROC_CHILDREN).
std::vector<pid_t> children_of(pid_t pid, pid_t tid);

// Some lines of /proc/PID/status.
struct ProcStatus {
  uid_t uid = 0;  // real
  uid_t effective_uid = 0;
  pid_t innermost_pid = 0;  // in the pid namespace that the process lives in; 0: not told
  pid_t tracer = 0;         // 0: none, or none that can be seen from here
  // Signals as bits, SIGHUP the lowest.
  std::uint64_t pending = 0;  // for the whole process
  std::uint64_t blocked = 0;
  std::uint64_t caught = 0;
  std::uint64_t effective_capabilities = 0;  // likewise, by their numbers
};

// Reads `PATH/status`.
Result<ProcStatus> read_status(const std::string& path);

}  // namespace filetimer
