// What is known of a worker at one moment, and the `evidence` record made of it. Gathered by
// gathering.hpp, from /proc (proc_evidence.hpp), the worker's native stacks (stacks_helper.hpp) and
// its Python stacks (python_dump.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/json_writer.hpp"

namespace filetimer {

enum class EvidenceLevel { kNone, kProc, kStacks };
std::string_view name_of(EvidenceLevel level);

struct ThreadEvidence {
  pid_t tid = 0;
  std::string comm;
  char state = '?';
  std::string wchan;    // the kernel function it waits in; empty: none or unknown
  std::string syscall;  // "futex"; "running" on a CPU; empty: unknown
  std::optional<std::int64_t> syscall_number;
  std::string syscall_fd;  // what the first argument is, if it is a descriptor
  double cpu_s = 0;
  // When it was looked at, and the CPU time it had used by then.
  Instant sampled;
  std::optional<std::uint64_t> cpu_ns;
  std::optional<double> cpu_percent;      // of one CPU, since then
  std::vector<std::string> stack;         // kernel frames, the innermost first
  std::vector<std::string> native_stack;  // likewise, of its program and libraries
};

struct ChildEvidence {
  pid_t pid = 0;
  std::string comm;
  char state = '?';
};

// As Python's faulthandler tells of a thread.
struct PythonThread {
  std::string ident;                // "0x00007f12..."
  std::string name;                 // empty: not told
  bool is_current = false;          // the one that wrote the dump
  std::vector<std::string> frames;  // "train.py:12 in forward", the innermost first
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
  std::vector<PythonThread> python_threads;
  std::optional<double> held_ms;  // for how long the worker stood still for its native stacks
  double gathered_ms = 0;
  std::string missing;  // why something is not there; empty: nothing to say

  // One more reason for `missing`.
  void miss(std::string_view why);
};

// "waiting in futex_wait_queue (0 % CPU)", "running (100 % CPU)".
std::string doing(const ThreadEvidence& thread);

// Adds the fields of the `evidence` record, within kMaxEvidenceBytes.
void write_evidence(JsonWriter& json, const Evidence& evidence);

}  // namespace filetimer
