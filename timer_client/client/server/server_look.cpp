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

}  // namespace

ServerSeen look_for_server(const std::string& dir) {
  ServerSeen seen;
  struct stat st {};
  if (::stat(dir.c_str(), &st) != 0) {
    const int error = errno;
    seen.why_not =
        error == ENOENT
            ? fmt::format("no timer server: there is no folder '{}'", dir)
            : "no timer server: " +
                  system_error(fmt::format("cannot look at '{}'", dir), error).value().message;
    return seen;
  }
  const std::string path = fmt::format("{}/{}", dir, kBoardName);
  // Does not block on a FIFO or a device, and follows no symlink.
  const UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
  const LockState lock = file ? lock_state(file.get()).value_or(LockState{}) : LockState{};
  seen.is_there = lock.is_held;
  seen.pid = lock.holder;
  if (!seen.is_there) {
    seen.why_not = fmt::format("no timer server in '{}': {}", dir,
                               file ? "no process holds its lock" : "no server has run here");
  }
  alignas(64) std::array<std::byte, sizeof(Board)> bytes{};
  if (file && ::fstat(file.get(), &st) == 0 && S_ISREG(st.st_mode) &&
      read_at(file.get(), bytes.data(), bytes.size(), 0)) {
    const auto& board = *reinterpret_cast<const Board*>(bytes.data());
    const std::int64_t max_timeout = board.max_timeout.load(std::memory_order_relaxed);
    const bool is_board = board.magic == kBoardMagic && board.version == kBoardVersion &&
                          (seen.is_there || board.boot == this_boot());  // as BoardView does
    if (is_board) {
      seen.boot = board.boot;
    }
    if (is_board && max_timeout > 0) {
      seen.max_timeout = Duration{max_timeout};
    }
    if (is_board && seen.is_there) {  // a server that was killed leaves its announcement behind
      seen.announcement =
          static_cast<Announcement>(board.announcement.load(std::memory_order_relaxed));
    }
  }
  return seen;
}

std::string wait_for_server(const std::string& pipe, Duration timeout,
                            const std::function<void()>& while_waiting) {
  const Instant until = Instant::now() + timeout;
  Duration pause = kFirstPause;
  for (;;) {
    int error = 0;
    if (has_reader(pipe, error)) {
      return {};
    }
    const Duration left = until - Instant::now();
    if (left <= Duration::zero()) {
      return why_no_reader(error);
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
  if (run_folder.empty()) {
    return {};
  }
  const std::string path = fmt::format("{}/{}", run_folder, kBoardName);
  const UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
  alignas(64) std::array<std::byte, sizeof(Board)> bytes{};
  if (!file || !read_at(file.get(), bytes.data(), bytes.size(), 0)) {
    return {};
  }
  const auto& board = *reinterpret_cast<const Board*>(bytes.data());
  const std::uint64_t theirs = board.pid_namespace.load(std::memory_order_relaxed);
  const std::uint64_t ours = this_pid_namespace();
  const bool is_board = board.magic == kBoardMagic && board.version == kBoardVersion;
  // The kernel translates the pid of the lock's holder for its reader: 0 when it has none here.
  const LockState lock = lock_state(file.get()).value_or(LockState{});
  const bool are_known = theirs != 0 && ours != 0;
  const bool is_other =
      are_known ? theirs != ours
                : lock.is_held && lock.holder != board.server_pid.load(std::memory_order_relaxed);
  const bool is_hidden = lock.is_held && lock.holder == 0;
  return is_board && (is_other || is_hidden)
             ? fmt::format(
                   "the timer server in '{}' lives in another pid namespace, where the pids "
                   "of this one name other processes",
                   run_folder)
             : std::string();
}

}  // namespace filetimer
