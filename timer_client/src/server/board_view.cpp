// SPDX-License-Identifier: MIT
#include "timer_client/src/server/board_view.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "common/own_file.hpp"

namespace filetimer {

std::optional<BoardView> BoardView::open(const std::string& path) {
  const auto file = open_own_file(path, O_RDONLY);
  if (!file || file->status.st_size < static_cast<off_t>(kBoardBytes)) {
    return std::nullopt;
  }
  auto mapped = MappedFile::map(path, MappedFile::Access::kRead, kBoardBytes);
  if (!mapped) {
    return std::nullopt;
  }
  struct stat mapped_st {};  // the path may have come to mean another file
  if (::fstat(mapped->descriptor(), &mapped_st) != 0 || mapped_st.st_dev != file->status.st_dev ||
      mapped_st.st_ino != file->status.st_ino) {
    return std::nullopt;
  }
  // A container may show another boot id to the processes in it. The lock is held by a process of
  // this boot.
  const bool is_locked = lock_state(mapped->descriptor()).value_or(LockState{}).is_held;
  mapped->close_descriptor();
  BoardView view(std::move(*mapped), {file->status.st_dev, file->status.st_ino});
  const Board& board = view.board();
  if (board.magic != kBoardMagic || board.version != kBoardVersion ||
      (board.boot != this_boot() && !is_locked)) {
    return std::nullopt;
  }
  return view;
}

}  // namespace filetimer
