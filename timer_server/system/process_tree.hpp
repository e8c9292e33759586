// The kill targets beside the worker: its descendants, or its process group.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "timer_server/system/process.hpp"

namespace filetimer {

enum class KillMode { kTree, kGroup, kProcess };

// How often other_targets_of() looks at a tree. Processes come and go while a tree is read.
inline constexpr int kMaxTreeLooks = 4;
// The most links between parent and child that one look reads, give or take the children of a
// process. The second look of a kill, before SIGKILL, finds more.
inline constexpr std::size_t kMaxTreeProcesses = 16384;

// Returns the processes that `mode` adds to the worker, parents before their children, without the
// worker and without those in `excluded`. With kTree it leaves out what is below an excluded
// process and does not find a descendant whose parent had ended before. Looks until a look finds
// nothing new, at most `looks` times. Returns nothing if the worker has ended. Each pidfd was
// checked to belong to the process that was found.
std::vector<Process> other_targets_of(const Process& worker, KillMode mode,
                                      std::span<const pid_t> excluded, int looks = kMaxTreeLooks);

// Returns the targets that are not among `known`, the targets found before. Looks below these as
// well: a known target may have lost its parent and started another process since. Looks once and
// reads each process once.
std::vector<Process> new_targets_of(const Process& worker, std::span<const Process> known,
                                    KillMode mode, std::span<const pid_t> excluded);

}  // namespace filetimer
