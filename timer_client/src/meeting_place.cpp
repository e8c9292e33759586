// SPDX-License-Identifier: MIT
#include "timer_client/src/meeting_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "common/run_folder.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// From a server's opening its pipe to its serving.
constexpr Duration kStartUp = seconds{1};
constexpr Duration kPause = milliseconds{2};

}  // namespace

Result<MeetingPlace> find_meeting_place(const std::string& dir, const std::string& fifo) {
  const char* const set = std::getenv(kTransportVariable);
  const std::string_view transport = set == nullptr ? "" : set;
  if (!transport.empty() && transport != "pipe" && transport != "page") {
    return failure(fmt::format("${} is '{}': expected 'page' or 'pipe'", kTransportVariable,
                               printable(transport)));
  }
  MeetingPlace place;
  place.pipe = resolve_pipe(dir, fifo);
  if (fifo.empty() && transport != "pipe") {
    const RunFolder folder = resolve_run_folder(dir);
    // Not where $TORCHELASTIC_TIMER_FILE leads elsewhere.
    if (folder.path(kPipeName) == place.pipe) {
      place.run_folder = folder.dir;
    }
  }
  return place;
}

std::optional<BoardView> serving_board(const std::string& run_folder, Duration patience) {
  auto board = BoardView::open(fmt::format("{}/{}", run_folder, kBoardName));
  const Instant until = Instant::now() + std::min(patience, kStartUp);
  while (board && !board->is_serving()) {
    if (Instant::now() >= until) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(kPause);
  }
  return board;
}

}  // namespace filetimer
