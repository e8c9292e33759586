// What the kernel says of a worker: cheap files of /proc. Some of them may block for as long as
// somebody holds a lock of the worker's, so they are read on a side thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "timer_server/evidence/evidence.hpp"

namespace filetimer {

// Between the two looks at the CPU time of each thread that tell spinning from waiting. The kernel
// counts it in ticks of 1 to 10 ms.
inline constexpr std::chrono::milliseconds kCpuSample{30};

// `start_time` as in /proc/PID/stat: a pid that is another process by now gives nothing.
Evidence read_proc_evidence(pid_t pid, std::uint64_t start_time);

// The second look, kCpuSample after the first or later: sets cpu_percent.
void finish_cpu_sample(pid_t pid, Evidence& evidence);

}  // namespace filetimer
