// SPDX-License-Identifier: MIT
#include "timer_client/client/server/server_look.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "common/duration_text.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer {
namespace {

// --- the status page ---

constinit const Board kNoBoard{};

// An attempt opens the file that the previous one made; a server may replace the file in between.
constexpr int kAttempts = 3;

// The status page of clients that are switched off.
const Board& off_board() {
  static Board board{};
  board.announcement.store(static_cast<std::uint32_t>(Announcement::kDraining),
                           std::memory_order_relaxed);
  return board;
}

enum class BoardState { kUsable, kOfAnotherBoot, kUnknown };

BoardState state_of(const Board& board, bool is_locked) {
  if (board.magic == 0 && board.version == 0) {
    return BoardState::kUsable;
  }
  if (board.magic != kBoardMagic || board.version != kBoardVersion) {
    return BoardState::kUnknown;
  }
  // Processes in a container may see another boot id. A lock that is held shows that the file is of
  // this boot.
  return board.boot == this_boot() || is_locked ? BoardState::kUsable : BoardState::kOfAnotherBoot;
}

struct OpenedBoard {
  std::optional<MappedFile> file;  // none: it cannot be used
  FileIdentity identity;
  BoardState state = BoardState::kUnknown;
};

OpenedBoard open_board(const std::string& path) {
  OpenedBoard opened;
  auto file = open_own_file(path, O_RDONLY);
  if (!file || file->status.st_size < static_cast<off_t>(kBoardBytes)) {
    return opened;
  }
  const bool is_locked = lock_state(file->fd.get()).value_or(LockState{}).is_held;
  auto mapped = MappedFile::map(std::move(file->fd), MappedFile::Access::kRead, kBoardBytes, path);
  if (!mapped) {
    return opened;
  }
  mapped->close_descriptor();
  opened.state = state_of(*static_cast<const Board*>(mapped->data()), is_locked);
  opened.identity = {file->status.st_dev, file->status.st_ino};
  opened.file = std::move(*mapped);
  return opened;
}

// Makes room for a status page in the open file.
Status make_board_room(int fd, const std::string& path) {
  if (const int error = make_room(fd, 0, kBoardBytes); error != 0) {
    return system_error(fmt::format("cannot make room for '{}'", path), error);
  }
  return {};
}

// Makes a blank status page, or extends an existing one to its full size. A server does the same
// when it starts. The order does not matter, because the file is never cut and never written to.
Status make_blank(const std::string& path) {
  const UniqueFd fd = open_file(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0) {
    return system_error(fmt::format("cannot make '{}'", path));
  }
  if (!S_ISREG(st.st_mode)) {
    return failure(fmt::format("'{}' is no regular file: expected one, or nothing", path));
  }
  FILETIMER_TRY(check_board(fd.get(), path));
  return make_board_room(fd.get(), path);
}

// Uses a rename, so that no client finds the path without a status page. A server that opened the
// old one meanwhile notices at its next sweep, and opens this one.
Status replace_by_blank(const std::string& path) {
  std::string fresh = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(fresh.data(), O_CLOEXEC));
  if (!fd) {
    return system_error(fmt::format("cannot make '{}'", fresh));
  }
  Status made = make_board_room(fd.get(), fresh);
  if (made && ::rename(fresh.c_str(), path.c_str()) != 0) {
    made = system_error(fmt::format("cannot replace '{}'", path));
  }
  if (!made) {
    ::unlink(fresh.c_str());
  }
  return made;
}

// --- the server ---

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

Result<BoardView> BoardView::open_or_make(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kBoardName);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    OpenedBoard opened = open_board(path);
    if (opened.file && opened.state == BoardState::kUsable) {
      return BoardView(std::move(*opened.file), opened.identity);
    }
    if (const int error = error_of_size(kBoardBytes); error != 0) {
      return system_error(fmt::format("cannot make '{}'", path), error);
    }
    // Not earlier: in a container, a directory that a server has made and checked may be below
    // folders that this process would refuse.
    FILETIMER_TRY(create_run_folder(dir));
    const bool is_old = opened.state == BoardState::kOfAnotherBoot;
    FILETIMER_TRY(is_old ? replace_by_blank(path) : make_blank(path));
  }
  return failure(fmt::format("'{}' is no status page: expected one, or nothing", path));
}

BoardView BoardView::none() {
  return BoardView(kNoBoard);
}

BoardView BoardView::off() {
  return BoardView(off_board());
}

bool BoardView::is_off() const {
  return board_ == &off_board();
}

ServerLocation locate_server(const std::string& dir) {
  const RunFolder folder = resolve_run_folder(dir);
  return {.pipe = folder.path(kPipeName), .run_folder = folder.dir};
}

ServerLocation locate_server(const std::string& dir, const std::string& fifo) {
  ServerLocation place = locate_server(dir);
  const std::string pipe = resolve_pipe(dir, fifo);
  if (pipe != place.pipe && !is_same_file(place.pipe, pipe)) {
    // A pipe elsewhere, given or from $TORCHELASTIC_TIMER_FILE, belongs to the server in whose
    // directory it lies, else to the directory that the caller names.
    const ServerLocation beside = locate_server(pipe.substr(0, pipe.rfind('/')));
    if (beside.pipe == pipe && look_for_server(beside.run_folder).is_there) {
      return beside;
    }
    if (!resolve_run_folder(dir).was_named) {
      place.run_folder.clear();
    }
  }
  place.pipe = pipe;
  return place;
}

ServerSeen look_for_server(const std::string& dir) {
  ServerSeen seen;
  // Does not block on a FIFO or a device, and follows no symlink.
  const UniqueFd file =
      open_file(fmt::format("{}/{}", dir, kBoardName).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
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
    const std::string why = why_no_reader(pipe);
    if (why.empty()) {
      return {};
    }
    const Duration left = until - Instant::now();
    if (left <= Duration::zero()) {
      const bool has_waited = timeout > Duration::zero();
      return fmt::format("no timer server at '{}': {}{}", pipe, why,
                         has_waited ? fmt::format(" (tried for {})", duration_text(timeout)) : "");
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
