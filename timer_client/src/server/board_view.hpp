// The server's board as a client sees it: mapped once, read-only, for the life of the process. A
// server that comes later writes on the same board.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <compare>
#include <optional>
#include <string>

#include "common/board.hpp"
#include "common/mapped_file.hpp"

namespace filetimer {

class BoardView {
 public:
  // Which file it is, whatever path led to it.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  // Nothing when there is no board that can be believed: a regular file of this user, not through a
  // symlink, whole, of this version and of this boot.
  static std::optional<BoardView> open(const std::string& path);

  [[nodiscard]] const Board& board() const { return *board_; }
  [[nodiscard]] bool is_serving() const {
    return board().state.load(std::memory_order_acquire) ==
           static_cast<std::uint32_t>(ServerState::kServing);
  }
  [[nodiscard]] Identity identity() const { return identity_; }

 private:
  BoardView(MappedFile file, Identity identity)
      : file_(std::move(file)),
        board_(static_cast<const Board*>(file_.data())),
        identity_(identity) {}
  MappedFile file_;
  const Board* board_;
  Identity identity_;
};

}  // namespace filetimer
