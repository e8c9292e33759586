// What the kernel says of a worker that is about to be killed: cheap files of /proc, read on a side
// thread. Stacks of user space are not among them.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json_writer.hpp"

namespace filetimer {

struct ThreadEvidence {
  pid_t tid = 0;
  std::string comm;
  char state = '?';
  std::string wchan;    // the kernel function it waits in; empty: none or unknown
  std::string syscall;  // "futex"; "running" on a CPU; empty: unknown
  std::optional<std::int64_t> syscall_number;
  std::string syscall_fd;  // what the first argument is, if it is a descriptor
  double cpu_s = 0;
  std::vector<std::string> stack;  // kernel frames, the innermost first
};

struct ChildEvidence {
  pid_t pid = 0;
  std::string comm;
  char state = '?';
};

struct Evidence {
  std::vector<ThreadEvidence> threads;  // the main thread first; at most kMaxEvidenceThreads
  std::size_t threads_omitted = 0;
  char state = '?';
  double cpu_user_s = 0;
  double cpu_system_s = 0;
  std::int64_t rss_bytes = 0;
  std::vector<ChildEvidence> children;
  std::vector<std::string> devices;  // /dev/nvidia0 and the like that it has open
  double gathered_ms = 0;
  std::string missing;  // why something is not there; empty: nothing to say
};

// `start_time` as in /proc/PID/stat: a pid that is another process by now gives nothing.
Evidence gather_evidence(pid_t pid, std::uint64_t start_time);

// Adds the fields of the `evidence` record, within kMaxEvidenceBytes.
void write_evidence(JsonWriter& json, const Evidence& evidence);

}  // namespace filetimer
