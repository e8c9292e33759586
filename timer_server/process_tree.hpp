// Whom a kill is meant for besides the worker: its descendants, or its process group, each held by
// a pidfd that was checked to be still the process that was found.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "timer_server/process.hpp"

namespace filetimer {

enum class KillMode { kTree, kGroup, kProcess };

// The processes that `mode` adds to `worker` (which is not among them), never one of `spared`.
// A tree is looked at until two looks agree (children come and go while one reads), at most
// `looks` times. Processes that were reparented away before are not found.
inline constexpr int kMaxTreeLooks = 4;
std::vector<Process> companions_of(const Process& worker, KillMode mode,
                                   std::span<const pid_t> spared, int looks = kMaxTreeLooks);

// The companions of `worker` that are not among `known`, its companions so far, which may have lost
// their parents since they were found: what they started counts as well. One look, which reads each
// process once.
std::vector<Process> new_companions(const Process& worker, std::span<const Process> known,
                                    KillMode mode, std::span<const pid_t> spared);

// Of one worker; what is beyond is left to the second look before SIGKILL.
inline constexpr std::size_t kMaxTreeProcesses = 16384;

}  // namespace filetimer
