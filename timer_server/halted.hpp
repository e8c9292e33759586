// Whether a worker can do anything at all now: a process that is stopped, frozen or held by a
// debugger misses every deadline and hangs nowhere. A few small files of /proc and of the cgroups,
// none of which waits for the worker. Called on the loop thread and on side threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace filetimer {

// Where to look; tests have trees of their own.
struct HaltSources {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
};

// Whether a tracer is no debugger but a helper of this server, which lets go by itself.
using IsOwnHelper = std::function<bool(pid_t tracer)>;

// Why the process makes no progress: "stopped (SIGSTOP or the terminal)", "frozen by its cgroup
// '/job'", "traced by pid 7 (gdb)"; empty: nothing keeps it, or nothing that can be seen. A traced
// process counts as halted although it may run: its debugger decides when.
std::string why_halted(pid_t pid, const IsOwnHelper& is_own_helper,
                       const HaltSources& sources = {});

}  // namespace filetimer
