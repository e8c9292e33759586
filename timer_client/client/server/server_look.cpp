// SPDX-License-Identifier: MIT
#include "timer_client/client/server/server_look.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <thread>

#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds{10};
constexpr Duration kLongestPause = std::chrono::milliseconds{500};

// Returns whether a process of this pid namespace has another pid for the server of the status
// page, as far as that is known.
bool is_in_other_namespace(const Board& board, const LockState& lock) {
  const std::uint64_t theirs = board.pid_namespace.load(std::memory_order_relaxed);
  const std::uint64_t ours = this_pid_namespace();
  // The kernel translates the pid of the lock's holder for its reader: 0 when it has none here.
  if (lock.is_held && lock.holder == 0) {
    return true;
  }
  return theirs != 0 && ours != 0
             ? theirs != ours
             : lock.is_held && lock.holder != board.server_pid.load(std::memory_order_relaxed);
}

std::string why_no_server(const std::string& dir, bool has_board) {
  struct stat st {};
  if (::stat(dir.c_str(), &st) == 0) {
    return fmt::format("no timer server in '{}': {}", dir,
                       has_board ? "no process holds its lock" : "no server has run here");
  }
  const int error = errno;
  return "no timer server: " +
         (error == ENOENT
              ? fmt::format("there is no folder '{}'", dir)
              : system_error(fmt::format("cannot look at '{}'", dir), error).value().message);
}

bool is_same_file(const std::string& one, const std::string& other) {
  struct stat first {};
  struct stat second {};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

ServerLocation locate_server(const std::string& dir) {
  const RunFolder folder = resolve_run_folder(dir);
  return {.pipe = folder.path(kPipeName), .run_folder = folder.dir};
}

ServerLocation locate_server(const std::string& dir, const std::string& fifo) {
  ServerLocation place = locate_server(dir);
  const std::string pipe = resolve_pipe(dir, fifo);
  // A pipe elsewhere, given or from $TORCHELASTIC_TIMER_FILE, belongs to that directory if the
  // caller names the directory, or if the directory's pipe is the same file.
  if (pipe != place.pipe && !resolve_run_folder(dir).was_named && !is_same_file(place.pipe, pipe)) {
    place.run_folder.clear();
  }
  place.pipe = pipe;
  return place;
}

ServerSeen look_for_server(const std::string& dir) {
  ServerSeen seen;
  // Does not block on a FIFO or a device, and follows no symlink.
  const UniqueFd file(retry_eintr([path = fmt::format("{}/{}", dir, kBoardName)] {
    return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  }));
  const LockState lock = file ? lock_state(file.get()).value_or(LockState{}) : LockState{};
  seen.is_there = lock.is_held;
  seen.pid = lock.holder;
  if (!seen.is_there) {
    seen.why_not = why_no_server(dir, static_cast<bool>(file));
  }
  alignas(64) std::array<std::byte, sizeof(Board)> bytes{};
  const auto& board = *reinterpret_cast<const Board*>(bytes.data());
  struct stat st {};
  if (!file || ::fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode) ||
      !read_at(file.get(), bytes.data(), bytes.size(), 0) || board.magic != kBoardMagic ||
      board.version != kBoardVersion) {
    return seen;
  }
  seen.is_in_other_namespace = is_in_other_namespace(board, lock);
  if (!seen.is_there && board.boot != this_boot()) {  // as BoardView does
    return seen;
  }
  if (const std::int64_t longest = board.max_timeout.load(std::memory_order_relaxed); longest > 0) {
    seen.max_timeout = Duration{longest};
  }
  if (seen.is_there) {  // a server that was killed leaves its announcement behind
    seen.announcement =
        static_cast<Announcement>(board.announcement.load(std::memory_order_relaxed));
  }
  return seen;
}

std::string wait_for_server(const std::string& pipe, Duration timeout,
                            const std::function<void()>& while_waiting) {
  const Instant until = Instant::now() + timeout;
  Duration pause = kFirstPause;
  for (;;) {
    std::string why = why_no_reader(pipe);
    const Duration left = until - Instant::now();
    if (why.empty() || left <= Duration::zero()) {
      return why;
    }
    std::this_thread::sleep_for(std::min(pause, left));
    if (while_waiting) {
      while_waiting();
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

std::string why_no_new_scopes(const ServerLocation& place) {
  if (place.run_folder.empty()) {
    return {};
  }
  const Announcement announced = look_for_server(place.run_folder).announcement;
  return announced == Announcement::kNone
             ? std::string()
             : fmt::format("the timer server in '{}' is {}: it watches no new scopes",
                           place.run_folder,
                           announced == Announcement::kShutdown ? "shutting down" : "draining");
}

std::string why_no_pids(const std::string& run_folder) {
  return !run_folder.empty() && look_for_server(run_folder).is_in_other_namespace
             ? fmt::format(
                   "the timer server in '{}' lives in another pid namespace, where the pids "
                   "of this one name other processes",
                   run_folder)
             : std::string();
}

}  // namespace filetimer
