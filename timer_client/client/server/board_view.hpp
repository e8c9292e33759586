// A client's view of the server's status page: mapped once, read-only. A server that starts later
// writes to the same file.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <compare>
#include <optional>
#include <string>

#include "common/board.hpp"
#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

// Immutable once it is made; may be read in any thread.
class BoardView {
 public:
  using Identity = FileIdentity;

  // Opens the status page of the runtime directory `dir`: a regular file of this user, not through
  // a symlink, whole, and either blank (no server has started yet) or of this version and this
  // boot. A status page whose lock is held is of this boot. Makes the directory and a blank status
  // page if they are missing, and replaces a status page of another boot that no server holds.
  static Result<BoardView> open_or_make(const std::string& dir);
  // Returns a status page of no server, all zeroes: no scope writes a wake-up message.
  static BoardView none();
  // Returns the status page of a client that is switched off: its scopes are refused.
  static BoardView off();
  [[nodiscard]] bool is_off() const;

  [[nodiscard]] const Board& board() const { return *board_; }
  // Returns which file the status page is; all zeroes for none().
  [[nodiscard]] Identity identity() const { return identity_; }
  // Returns whether the file was cut short: the view then shows zeroes and no server.
  [[nodiscard]] bool is_broken() const { return file_ && file_->is_broken(); }

 private:
  BoardView(MappedFile file, Identity identity)
      : file_(std::move(file)),
        board_(static_cast<const Board*>(file_->data())),
        identity_(identity) {}
  explicit BoardView(const Board& board) : board_(&board) {}

  std::optional<MappedFile> file_;
  const Board* board_;
  Identity identity_;
};

}  // namespace filetimer
