// The server's board: the file `server` of the run folder, which is also the file whose lock makes
// this the only server (see server_lock.hpp). Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

class BoardFile {
 public:
  // What clients are told of the server's settings.
  struct Terms {
    Duration max_timeout = kForever;
    Duration default_timeout{};  // zero: none
    std::uint32_t warn_at = 0;   // see Board
  };
  // Call it with the lock held. Says "wake me always" and nothing else yet.
  static Result<BoardFile> open(const std::string& path, const Terms& terms);

  // Clients take their pages for watched from here on. Call it when the pipe is open and before the
  // first scan: who still finds the incarnation under which nobody read the pipe does not try to
  // wake anybody, and must be found by that scan; who finds the new one must be able to write.
  // Again each time the pipe was made anew.
  void serve();
  // Wakes the clients that wait for a change of it.
  void announce(Announcement announcement);
  // No client has to wake anybody any more.
  void stop();

  [[nodiscard]] Board& board() const { return *static_cast<Board*>(file_.data()); }

 private:
  explicit BoardFile(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
};

}  // namespace filetimer
