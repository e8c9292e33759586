// The folder where server and clients of one user (or one job) meet, and the names in it.
// Resolution is the same on both sides; only the server creates and checks (create_run_folder).
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

inline constexpr const char* kDirVariable = "FILETIMER_DIR";
inline constexpr const char* kTorchPipeVariable = "TORCHELASTIC_TIMER_FILE";

inline constexpr std::string_view kPipeName = "requests";
inline constexpr std::string_view kBoardName = "server";
inline constexpr std::string_view kLogName = "expired.jsonl";
// What the name of a folder made for one COMMAND begins with, inside the default folder.
inline constexpr std::string_view kFreshFolderPrefix = "run-";
// A symlink to the log of the last server, if that is elsewhere.
inline constexpr std::string_view kLogLinkName = "log_link";
inline constexpr std::string_view kPagesName = "scopes";
inline constexpr std::string_view kRepliesName = "replies";
// In `scopes`: what the server itself keeps there, and
inline constexpr std::string_view kServerPagesName = "server";
// Python stacks, as docs/protocol.md has them.
inline constexpr std::string_view kStacksName = ".stacks";

// Where somebody said the folder is, or that nobody did.
enum class FolderSource { kGiven, kEnvironment, kDefault };

struct RunFolder {
  std::string dir;
  FolderSource source = FolderSource::kDefault;

  [[nodiscard]] bool was_named() const { return source != FolderSource::kDefault; }
  [[nodiscard]] std::string path(std::string_view name) const;
};

// `--dir`, else $FILETIMER_DIR, else $XDG_RUNTIME_DIR/filetimer if that runtime folder exists and
// is ours, else /dev/shm/filetimer-UID. An empty `dir` means that none was given.
RunFolder resolve_run_folder(const std::string& dir);

// Where the pipe is for a client: `--fifo`, else the pipe of `--dir`, else of $FILETIMER_DIR, else
// $TORCHELASTIC_TIMER_FILE, else the pipe of the default folder.
std::string resolve_pipe(const std::string& dir, const std::string& fifo);

// Where the log is when no --log names it: expired.jsonl in a folder that somebody named, else
// $XDG_STATE_HOME/filetimer/HOST-ID.jsonl (run folders vanish at logout), ID being the first eight
// digits of the machine id. An error when neither $XDG_STATE_HOME nor $HOME is set.
Result<std::string> default_log_path(const RunFolder& folder);

// Makes `dir` with mode 0700, and its parents where they are missing, or checks the one that is
// there, and opens it. Refused: a symlink, what is no folder, another user's, one that others may
// write to, and one with a parent in which others could swap it for another (not root's or ours,
// or writable by others without the sticky bit).
Result<UniqueFd> create_run_folder(const std::string& dir);

// The same check of the folders above `path`, for a pipe or a log placed elsewhere.
Status check_parents(const std::string& path);

}  // namespace filetimer
