// Evidence from small files of /proc. Some of them block while another thread holds a lock of the
// worker, for example its memory lock, so they are read on a side thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "timer_server/evidence/evidence.hpp"

namespace filetimer {

// The time over which the CPU use of each thread is measured. It spans several ticks (1 to 10 ms),
// in which some kernels count CPU time.
inline constexpr std::chrono::milliseconds kCpuSample{30};

// Reads what the kernel says of the process. Returns evidence without threads, with the reason in
// `missing`, if the process has ended: `start_time` (field 22 of /proc/PID/stat) distinguishes
// it from a later process with the same pid.
Evidence read_proc_evidence(pid_t pid, std::uint64_t start_time);

// Reads the CPU times again and sets cpu_percent of each thread. Call it at least kCpuSample after
// read_proc_evidence().
void finish_cpu_sample(pid_t pid, Evidence& evidence);

}  // namespace filetimer
