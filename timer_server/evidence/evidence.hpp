// Evidence: what the server saw of a worker at one moment, and the fields of the `evidence` record.
// EvidenceCollection fills it from /proc (proc_evidence.hpp), from the native stacks
// (stacks_helper.hpp) and from the Python stacks (python_dump.hpp).
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
// Returns the word of --evidence: "none", "proc" or "stacks".
std::string_view name_of(EvidenceLevel level);

// Threads that have the stacks of another one.
struct SameStack {
  std::string comm;
  std::string doing;       // see activity_of()
  std::string syscall_fd;  // as that of a thread
  std::vector<pid_t> tids;
  double cpu_percent = 0;  // of all of them
};

struct ThreadEvidence {
  pid_t tid = 0;
  std::string comm;
  char state = '?';     // the letter of /proc/PID/stat
  std::string wchan;    // the kernel function that the thread waits in; empty: none, or unknown
  std::string syscall;  // "futex"; "running" while the thread is on a CPU; empty: unknown
  std::optional<std::int64_t> syscall_number;
  std::string syscall_fd;  // the file behind the first argument, if that is a descriptor
  double cpu_s = 0;
  Instant sampled;                        // when cpu_ns was read; Instant{}: it was not
  std::optional<std::uint64_t> cpu_ns;    // CPU time up to `sampled`
  std::optional<double> cpu_percent;      // of one CPU, after `sampled`
  std::vector<std::string> stack;         // kernel frames, the innermost first
  std::vector<std::string> native_stack;  // frames of the program and its libraries, likewise
  pid_t native_stack_of = 0;          // the thread whose `native_stack` is that of this one, too
  std::vector<SameStack> same_stack;  // set by folded()
};

// The children of a worker, such as data loaders, whose main threads are read. The others have a
// tid, a name and a state only.
inline constexpr std::size_t kMaxChildrenRead = 16;

// A thread in the dump of Python's faulthandler.
struct PythonThread {
  std::string ident;                       // "0x00007f12..."
  std::string name;                        // empty: not in the dump
  bool is_current = false;                 // the thread that wrote the dump
  std::vector<std::string> frames;         // "train.py:12 in forward", the innermost first
  std::vector<PythonThread> same_stack{};  // those with these frames, set by folded()
};

struct Evidence {
  std::vector<ThreadEvidence> threads;  // the main thread first; at most kMaxEvidenceThreads
  std::size_t threads_omitted = 0;
  double cpu_user_s = 0;
  double cpu_system_s = 0;
  std::int64_t rss_bytes = 0;
  std::vector<ThreadEvidence> children;  // their main threads
  std::vector<std::string> devices;      // open accelerators and network adapters, "/dev/nvidia0"
  std::vector<PythonThread> python_threads;
  std::optional<double> held_ms;  // how long the worker was stopped for its native stacks
  double gathered_ms = 0;         // how long the collection took
  std::string missing;            // the reasons why parts are missing; empty: nothing is missing

  // Adds a reason to `missing`. Drops the reason if `missing` would exceed 2 KiB.
  void add_missing(std::string_view reason);
};

// Returns what the thread was doing: "waiting in futex_wait_queue (0 % CPU)", "running (100 %
// CPU)".
std::string activity_of(const ThreadEvidence& thread);

// Returns the evidence with each stack once: the first thread that has it stands for the others,
// which are in its `same_stack`. Threads without stacks are alike if they do the same. Takes a
// millisecond for a thousand threads, so it is called on a side thread.
Evidence folded(const Evidence& evidence);

// Writes the fields of the `evidence` record. The lists are shortened to fit kMaxEvidenceBytes.
void write_evidence(JsonWriter& json, const Evidence& evidence);

}  // namespace filetimer
