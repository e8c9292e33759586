// The status page as the server writes it: the file `server` of the runtime directory. The lock on
// the same file makes this the only server (runtime_directory.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/board.hpp"
#include "common/bus_guard.hpp"
#include "common/clock.hpp"
#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

class BoardFile {
 public:
  // The server's settings that clients need.
  struct Terms {
    Duration max_timeout = kForever;
    Duration default_timeout{};  // zero: none
    std::uint32_t warn_at = 0;   // see Board
  };
  // Opens the file and writes `terms` and "wake me always". Called with the lock held.
  static Result<BoardFile> open(const std::string& path, const Terms& terms);

  // Sets the state to serving and increments the incarnation. Called when the pipe is open and
  // before the first scan, and again when the pipe was replaced: a client that still finds the old
  // incarnation, under which the pipe had no reader, writes no wake-up message and must be found by
  // that scan; a client that finds the new one must be able to write.
  void serve();
  // Has clients that have mapped the page wake the server at each acquire from now on.
  void want_all_wakes();
  // Has clients wake the server only for a deadline before `when`, at which it looks at all scopes.
  void want_wakes_before(Instant when);
  // Writes the announcement and wakes the clients that wait for a change of it. Does nothing after
  // stop().
  void announce(Announcement announcement);
  // Sets the state to stopped, and leaves the page to the next server. Clients write no wake-up
  // messages from then on.
  void stop();

  // Any process of the user may cut the file short. What is written from then on reaches no client.
  // Returns whether a write has found the file too short.
  [[nodiscard]] bool was_cut() const { return guard_->is_broken(); }
  // Returns whether the file has its whole length, and every write found it so.
  [[nodiscard]] bool is_whole() const;

 private:
  explicit BoardFile(MappedFile file)
      : file_(std::move(file)), guard_(std::make_unique<BusGuard>(file_.data(), kBoardBytes)) {}
  [[nodiscard]] Board& board() const { return *static_cast<Board*>(file_.data()); }

  MappedFile file_;
  std::unique_ptr<BusGuard> guard_;  // destroyed before the mapping
};

}  // namespace filetimer
