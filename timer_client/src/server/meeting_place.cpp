// SPDX-License-Identifier: MIT
#include "timer_client/src/server/meeting_place.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

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

bool is_same_file(const std::string& one, const std::string& other) {
  struct stat first {};
  struct stat second {};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

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
  const RunFolder folder = resolve_run_folder(dir);
  const bool is_its_pipe = folder.path(kPipeName) == place.pipe;
  // A pipe elsewhere, named or from $TORCHELASTIC_TIMER_FILE, is of that folder if who gives the
  // folder says so, or the folder itself.
  if (is_its_pipe || !dir.empty() || is_same_file(folder.path(kPipeName), place.pipe)) {
    place.run_folder = folder.dir;
  }
  place.may_have_page = is_its_pipe && fifo.empty() && transport != "pipe";
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
