// The folder `replies`: the pipes on which those who ask something want to be answered. They make
// and remove them; the server opens them to write, and clears away what was left behind.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

class ReplyFolder {
 public:
  // A pipe that nobody has read for so long is removed.
  static constexpr Duration kLeftBehindAfter = std::chrono::minutes{1};

  // In the run folder `dir`; checked as the run folder itself is.
  static Result<ReplyFolder> make(const std::string& dir);

  // To write on, never blocking. Refused: a name that docs/protocol.md does not allow, what is no
  // named pipe (it is looked at before it is opened, and no symlink is followed), another user's,
  // and one that nobody reads.
  [[nodiscard]] Result<UniqueFd> open(std::string_view name) const;

  // False once somebody has removed or replaced the folder.
  [[nodiscard]] bool is_in_place() const;

  // Removes pipes that were left behind, at most some hundred at once.
  void clear_away() const;

 private:
  ReplyFolder(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::string path_;
  UniqueFd folder_;
};

}  // namespace filetimer
