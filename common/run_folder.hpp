// The runtime directory, which server and clients of one user (or one job) share, and the names in
// it. Both sides find it by the same rules, and the first one makes and checks it
// (create_run_folder()).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <string>
#include <string_view>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

inline constexpr const char* kDirVariable = "FILETIMER_DIR";
inline constexpr const char* kTorchPipeVariable = "TORCHELASTIC_TIMER_FILE";

// The variables in which launchers (torchrun, Slurm, Open MPI, PMI, batch systems) name the job of
// a process and its rank. The first variable of each list that is set counts. Slurm's ranks come
// last: in a batch script they are 0, and all ranks of an mpirun in it inherit that.
inline constexpr std::array<const char*, 5> kRankVariables{"RANK", "OMPI_COMM_WORLD_RANK",
                                                           "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
inline constexpr std::array<const char*, 4> kLocalRankVariables{
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
// Those of torchrun ("none" by default) and Open MPI are last, because the name of a batch system
// that started them is better.
inline constexpr std::array<const char*, 6> kJobVariables{
    "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"};
inline constexpr std::array<const char*, 1> kStepVariables{"SLURM_STEP_ID"};

inline constexpr std::string_view kPipeName = "requests";
inline constexpr std::string_view kControlName = "control";
inline constexpr std::string_view kBoardName = "server";
inline constexpr std::string_view kLogName = "expired.jsonl";
// The beginning of the name of a folder that is made for one COMMAND, inside the default folder.
inline constexpr std::string_view kFreshFolderPrefix = "run-";
// A symlink to the log of the last server, if that is elsewhere.
inline constexpr std::string_view kLogLinkName = "log_link";
inline constexpr std::string_view kPagesName = "scopes";
inline constexpr std::string_view kKillsName = "kills";
// In `scopes`: the pages that the server keeps for workers of the pipe.
inline constexpr std::string_view kServerPagesName = "server";
// In `scopes`: the processes that held the locks of pages (docs/protocol.md).
inline constexpr std::string_view kOwnersName = ".owners";
// In `scopes`: Python stacks (docs/protocol.md).
inline constexpr std::string_view kStacksName = ".stacks";

struct RunFolder {
  std::string dir;
  bool was_named = false;  // by an option or the environment

  [[nodiscard]] std::string path(std::string_view name) const { return (dir + '/').append(name); }
};

// Returns `dir`, else $FILETIMER_DIR, else $XDG_RUNTIME_DIR/filetimer if $XDG_RUNTIME_DIR is a
// folder of this user, else /dev/shm/filetimer-UID. An empty `dir` means that none was given.
RunFolder resolve_run_folder(const std::string& dir);

// Returns the path of a client's request pipe: `fifo`, else the pipe of `dir`, else of
// $FILETIMER_DIR, else $TORCHELASTIC_TIMER_FILE, else the pipe of the default directory.
std::string resolve_pipe(const std::string& dir, const std::string& fifo);

// Returns the path of the log without --log: expired.jsonl in a named directory, else
// $XDG_STATE_HOME/filetimer/HOST-ID.jsonl (runtime directories vanish at logout), ID being the
// first eight digits of the machine id. Fails if neither $XDG_STATE_HOME nor $HOME is set.
Result<std::string> default_log_path(const RunFolder& folder);

// Returns the path from the root, without a slash at its end.
std::string absolute_path(const std::string& path);

// Returns the name of this host, or "unknown".
std::string host_name();

// Makes `dir` with mode 0700, and its parents if they are missing, or checks the existing one, and
// opens it. Fails for a symlink, for what is not a folder of this user, if others may write to it,
// and if others could replace it in a parent (which is neither root's nor this user's, or writable
// by others without the sticky bit).
Result<UniqueFd> create_run_folder(const std::string& dir);

// Checks the folders above `path` in the same way, for a pipe or a log elsewhere.
Status check_parents(const std::string& path);

// The address of a socket in a folder, such as that of control requests (wire.hpp). An address has
// room for 107 bytes, so a longer path leads through a descriptor of the folder.
class ControlAddress {
 public:
  // Fails if the path is long and the folder cannot be opened.
  static Result<ControlAddress> in(const std::string& dir, std::string_view name = kControlName);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t size() { return sizeof(sockaddr_un); }

 private:
  sockaddr_un address_{};
  UniqueFd folder_;
};

}  // namespace filetimer
