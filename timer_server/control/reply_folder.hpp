// The folder `replies` of the runtime directory: the pipes on which clients are answered.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// Opens reply pipes for writing and removes abandoned ones. Clients make their pipes and remove
// them. Used on the loop thread.
class ReplyFolder {
 public:
  // A pipe of this age without a reader is abandoned: its client has exited without removing it.
  static constexpr Duration kAbandonedAfter = std::chrono::minutes{1};

  // Makes or opens the folder in the runtime directory `dir`. Fails if another user could write to
  // it.
  static Result<ReplyFolder> make(const std::string& dir);

  // Opens a reply pipe for writing without blocking. Fails if docs/protocol.md does not allow the
  // name, or if the file is not a named pipe, belongs to another user or has no reader. Checks the
  // file before opening it, and follows no symlink.
  [[nodiscard]] Result<UniqueFd> open(std::string_view name) const;

  // Returns false if the folder was removed or replaced.
  [[nodiscard]] bool is_in_place() const;

  // Removes abandoned pipes. Looks at a few hundred files at most.
  void remove_abandoned() const;

 private:
  ReplyFolder(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::string path_;
  UniqueFd folder_;
};

}  // namespace filetimer
