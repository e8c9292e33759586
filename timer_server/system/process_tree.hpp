// The descendants of a process.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "timer_server/system/process.hpp"

namespace filetimer {

// How often descendants_of() looks at a tree. Processes come and go while a tree is read.
inline constexpr int kMaxTreeLooks = 4;
// The most links between parent and child that one look reads, give or take the children of a
// process. The second look of a kill, before SIGKILL, finds more.
inline constexpr std::size_t kMaxTreeProcesses = 16384;

// Returns the descendants of the worker, parents before their children, without those in `excluded`
// and what is below them. Does not find a descendant whose parent had ended before. Looks until a
// look finds nothing new, at most `looks` times. Returns nothing if the worker has ended. Each
// pidfd was checked to belong to the process that was found.
std::vector<Process> descendants_of(const Process& worker, std::span<const pid_t> excluded,
                                    int looks = kMaxTreeLooks);

// Returns the descendants that are not among `known`, those found before. Looks below these as
// well: a known descendant may have lost its parent and started another process since. Looks once
// and reads each process once.
std::vector<Process> new_descendants_of(const Process& worker, std::span<const Process> known,
                                        std::span<const pid_t> excluded);

}  // namespace filetimer
