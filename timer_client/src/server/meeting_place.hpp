// Where a client meets its server, and by which of the two ways.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_client/src/server/board_view.hpp"

namespace filetimer {

inline constexpr const char* kTransportVariable = "FILETIMER_TRANSPORT";

struct MeetingPlace {
  std::string pipe;
  // Where there may be a board, and who asks the server makes a pipe for the answers. Empty: lines
  // on the pipe and nothing else.
  std::string run_folder;
  bool may_have_page = false;  // scopes go on a page there, if it has a board
};

// `dir` and `fifo` as in ConnectOptions. An error quotes a $FILETIMER_TRANSPORT that says neither
// "page" nor "pipe".
Result<MeetingPlace> find_meeting_place(const std::string& dir, const std::string& fifo);

// The board of a server that serves. One that is still starting is waited for, but not beyond
// `patience`, nor a second. Nothing: there is none, and lines it is.
std::optional<BoardView> serving_board(const std::string& run_folder, Duration patience);

}  // namespace filetimer
