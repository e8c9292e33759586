// A process, identified by its pidfd, and what /proc says about it. Nothing here blocks: files that
// take the memory lock of the process are left to worker_facts.hpp. Used on the loop thread and on
// side threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/result.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {

struct Process : ProcStat {  // as it was when the process was opened
  uid_t uid = 0;
  pid_t innermost_pid = 0;  // the pid that the process has in its own pid namespace
  UniqueFd pidfd;

  // Returns when the process started, or a time before that: by at most a clock tick, and by the
  // time for which the machine was suspended since.
  [[nodiscard]] Instant started() const;
  // Returns false from the moment the process has exited, even if it was not reaped yet.
  [[nodiscard]] bool is_alive() const { return pidfd && !is_readable_within(pidfd.get(), {}); }
  // Sends a signal by the pidfd. Returns false with errno set if it was not sent.
  bool send_signal(int signal) const;
};

// Returns the start time of a process that starts now.
std::uint64_t start_time_now();

// Opens a pidfd, which is always close-on-exec. Returns an empty descriptor with errno set if it
// cannot be opened.
UniqueFd open_pidfd(pid_t pid);

// Opens a pidfd and reads the other members. They belong to the process of the pidfd, because that
// process is still alive after they were read. Fails with ESRCH if there is no such process, or it
// has ended.
Result<Process> open_process(pid_t pid);

// Returns whether the kernel gives each program that the process executes another address for its
// stack, so that Process::start_stack names the program. Debuggers and some sites switch that off.
bool has_random_stack(pid_t pid);

// Returns the folder of this process's program, with a slash at its end; empty if it is not known.
// The first call is at the start: pip moves a program that it replaces to a folder in /tmp, which
// another user could make again when pip has removed it.
std::string folder_of_this_program();

// The most links between parent and child that one look reads, give or take the children of a
// process. The second look of a kill, before SIGKILL, finds more.
inline constexpr std::size_t kMaxTreeProcesses = 16384;

// Each process of the host and its session; none: they are not read yet.
using Sessions = std::optional<std::vector<std::pair<pid_t, pid_t>>>;
// Returns the processes of the session of `leader`, without itself and those in `known`. A process
// joins no session of another one, so all of a session descend from its leader, whatever became of
// their parents. Returns none on a host with very many processes.
std::vector<Process> session_of(const Process& leader, std::span<const Process> known,
                                Sessions& all);

// Returns the descendants of the worker that are not among `known`, those found before: parents
// before their children, without those in `excluded` and what is below them. Looks below the known
// ones as well: one may have lost its parent and started another process since. Does not find
// another descendant whose parent had ended before. Looks once and reads each process once. Each
// pidfd was checked to belong to the process that was found.
std::vector<Process> descendants_of(const Process& worker, std::span<const Process> known,
                                    std::span<const pid_t> excluded);

// A worker is halted while it is stopped, frozen or traced: it misses its deadlines although it
// does not hang, so its scopes are deferred.

// The folders to read, and what says whether a tracer is a stacks helper of this server, which
// detaches within milliseconds. Tests have their own.
struct HaltSources {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
  std::function<bool(pid_t tracer)> is_own_helper = filetimer::is_own_helper;
};

// Returns why the process is halted: "stopped (SIGSTOP or the terminal)", "frozen by its cgroup
// '/job'", "traced by pid 7 (gdb)". Returns an empty string if the process is not halted or has
// ended. A traced process counts as halted even while it runs, because its debugger decides when it
// runs. A process whose state cannot be read for now is "perhaps halted".
std::string why_halted(pid_t pid, const HaltSources& sources = {});

}  // namespace filetimer
