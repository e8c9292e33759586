// Whether a worker is halted: stopped, frozen or traced. A halted worker misses its deadlines
// although it does not hang, so its scopes are deferred. Reads a few small files of /proc and of
// the cgroups, none of which waits for the worker. Used on the loop thread and on side threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace filetimer {

// The folders to read. Tests have their own.
struct HaltSources {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
};

// Returns whether a tracer is a stacks helper of this server, which detaches within milliseconds.
using IsOwnHelper = std::function<bool(pid_t tracer)>;

// Returns why the process is halted: "stopped (SIGSTOP or the terminal)", "frozen by its cgroup
// '/job'", "traced by pid 7 (gdb)". Returns an empty string if the process is not halted or has
// ended. A traced process counts as halted even while it runs, because its debugger decides when it
// runs. A process whose state cannot be read for now is "perhaps halted".
std::string why_halted(pid_t pid, const IsOwnHelper& is_own_helper,
                       const HaltSources& sources = {});

}  // namespace filetimer
