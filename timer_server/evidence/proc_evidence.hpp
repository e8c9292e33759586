// Evidence from small files of /proc. Some of them block while another thread holds a lock of the
// worker, for example its memory lock, so they are read on a side thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "timer_server/evidence/evidence.hpp"

namespace filetimer {

class StacksHelper;  // stacks_helper.hpp

// The time over which the CPU use of each thread is measured. It spans several ticks (1 to 10 ms),
// in which some kernels count CPU time.
inline constexpr std::chrono::milliseconds kCpuSample{30};

// The threads of a worker that are read before those of others. A thread takes 50 us.
inline constexpr std::size_t kThreadsReadFirst = 64;

// Reads what the kernel says of the process, and of its first kThreadsReadFirst threads. Returns
// evidence without threads, with the reason in `missing`, if the process has ended: `start_time`
// (field 22 of /proc/PID/stat) distinguishes it from a later process with the same pid.
Evidence read_proc_evidence(pid_t pid, std::uint64_t start_time);

// Adds the threads that read_proc_evidence() has left out, up to kMaxEvidenceThreads.
void read_other_threads(pid_t pid, std::uint64_t start_time, Evidence& evidence);

// The CPU times of the first kThreadsReadFirst threads of a process, before its deadline.
struct CpuSample {
  // How long before a deadline they are read: the evidence then need not wait for kCpuSample.
  static constexpr Duration kLead = kCpuSample + std::chrono::milliseconds{5};
  // They count for evidence that begins within this time, and are read again after it.
  static constexpr Duration kLife = std::chrono::seconds{1};

  std::vector<ThreadEvidence> threads;   // `tid`, `sampled` and `cpu_ns` only
  std::shared_ptr<StacksHelper> helper;  // has been started as well, and is used once; null: not
};
CpuSample read_cpu_sample(pid_t pid);
// Lets the CPU sample of each thread begin with that of `early`, if it is there and recent.
void begin_cpu_sample(const CpuSample& early, Evidence& evidence);
// Reads the CPU times again and sets cpu_percent of each thread. Call it at least kCpuSample after
// read_proc_evidence().
void finish_cpu_sample(pid_t pid, Evidence& evidence);

}  // namespace filetimer
