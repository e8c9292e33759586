// SPDX-License-Identifier: MIT
#include "timer_client/client/server/board_view.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/posix.hpp"
#include "common/run_folder.hpp"

namespace filetimer {
namespace {

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
  BoardView::Identity identity;
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
  const UniqueFd fd(retry_eintr([&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  }));
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

}  // namespace filetimer
