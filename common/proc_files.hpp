// Files of /proc that can be read without waiting: none of them takes the memory lock of the
// process.
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
  pid_t session = 0;
  bool is_kernel_thread = false;
  bool is_exiting = false;  // without memory and locks, and possibly stuck
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  int threads = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::int64_t rss_pages = 0;
  std::uint64_t start_stack = 0;  // 0: not permitted, or exiting
};

// Returns the fields of `PATH/stat`, PATH being /proc/PID or /proc/PID/task/TID.
Result<ProcStat> read_stat(const std::string& path);
// Returns those of this process, as other processes read them: an emulator (qemu-user) makes up
// what is in /proc/self/stat.
inline Result<ProcStat> read_own_stat() {
  return read_stat("/proc/self/task/..");
}
// Returns a whole small file, at most `limit` bytes. `is_given_at_once`: one read() returns all
// that it has room for, so none has to find the end.
Result<std::string> read_small_file(const std::string& path, std::size_t limit = 16384,
                                    bool is_given_at_once = false);
// Likewise of a file whose text the kernel makes when it is read: not of one with a list.
inline Result<std::string> read_at_once(const std::string& path) {
  return read_small_file(path, 65536, true);
}

// Returns the entries of a folder of /proc that are numbers: processes, threads or descriptors.
std::vector<pid_t> numbers_in(const std::string& folder);
// Returns the threads of a process, the main one first, then by number. Returns none if the process
// has ended.
std::vector<pid_t> threads_of(pid_t pid);
// Returns the child processes that a thread has started. Returns none if the thread has ended, or
// if the kernel lacks CONFIG_PROC_CHILDREN.
std::vector<pid_t> children_of(pid_t pid, pid_t tid);

// Returns the pids of the ancestors of `pid`, the parent first.
std::vector<pid_t> ancestors_of(pid_t pid);

// Some lines of /proc/PID/status.
struct ProcStatus {
  uid_t uid = 0;  // real
  uid_t effective_uid = 0;
  pid_t innermost_pid = 0;  // in the process's own pid namespace; 0: not known
  char state = '?';
  pid_t tracer = 0;  // 0: none, or outside this pid namespace
  // Signals as bits, SIGHUP the lowest.
  std::uint64_t pending = 0;  // for the whole process
  std::uint64_t blocked = 0;
  std::uint64_t caught = 0;
  std::uint64_t effective_capabilities = 0;  // likewise, by their numbers
};

// Returns fields of `PATH/status`.
Result<ProcStatus> read_status(const std::string& path);

}  // namespace filetimer
