// SPDX-License-Identifier: MIT
#include "timer_client/src/server/board_view.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/posix.hpp"

namespace filetimer {
namespace {

bool is_ours_and_whole(const struct stat& st) {
  return S_ISREG(st.st_mode) && st.st_uid == ::geteuid() &&
         st.st_size >= static_cast<off_t>(kBoardBytes);
}

}  // namespace

std::optional<BoardView> BoardView::open(const std::string& path) {
  // NONBLOCK: a pipe that stands there must not hold us up.
  const UniqueFd looked_at(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
  struct stat st {};
  if (!looked_at || ::fstat(looked_at.get(), &st) != 0 || !is_ours_and_whole(st)) {
    return std::nullopt;
  }
  auto mapped = MappedFile::map(path, MappedFile::Access::kRead, kBoardBytes);
  if (!mapped) {
    return std::nullopt;
  }
  struct stat mapped_st {};  // the path may have come to mean another file
  if (::fstat(mapped->descriptor(), &mapped_st) != 0 || mapped_st.st_dev != st.st_dev ||
      mapped_st.st_ino != st.st_ino) {
    return std::nullopt;
  }
  // A container may show another boot id to the processes in it. The lock is held by a process of
  // this boot.
  const bool is_locked = lock_state(mapped->descriptor()).value_or(LockState{}).is_held;
  mapped->close_descriptor();
  BoardView view(std::move(*mapped), {st.st_dev, st.st_ino});
  const Board& board = view.board();
  if (board.magic != kBoardMagic || board.version != kBoardVersion ||
      (board.boot != this_boot() && !is_locked)) {
    return std::nullopt;
  }
  return view;
}

}  // namespace filetimer
