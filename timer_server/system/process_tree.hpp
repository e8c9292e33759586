// The descendants of a process.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
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

// The sessions of the host's processes, read once. A process joins no session of another one, so
// all of a session descend from its leader, whatever became of their parents.
class Sessions {
 public:
  // To read this many processes takes about 30 ms. On a host with more, of() finds none.
  static constexpr std::size_t kMostProcesses = 2048;
  // Returns the processes of the session of `leader`, without itself and those in `known`.
  std::vector<Process> of(const Process& leader, std::span<const Process> known);

 private:
  struct Member {
    pid_t session = 0;
    pid_t pid = 0;
    std::uint64_t start_time = 0;
  };
  std::optional<std::vector<Member>> all_;
};

// Returns the descendants that are not among `known`, those found before. Looks below these as
// well: a known descendant may have lost its parent and started another process since. Looks once
// and reads each process once.
std::vector<Process> new_descendants_of(const Process& worker, std::span<const Process> known,
                                        std::span<const pid_t> excluded);

}  // namespace filetimer
