// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/servers_below.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/directory.hpp"
#include "common/run_folder.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

// How many folders are examined. Servers that were killed leave theirs behind.
constexpr int kMostLookedAt = 1024;

}  // namespace

std::string servers_below(const std::string& dir) {
  std::vector<std::string> live;
  int looked_at = 0;
  Directory folders(dir);
  while (const char* const name = folders.next()) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (std::string_view(name).starts_with(kFreshFolderPrefix) && looked_at++ < kMostLookedAt &&
        look_for_server(path).is_there) {
      live.push_back(path);
    }
  }
  if (live.empty()) {
    return {};
  }
  std::sort(live.begin(), live.end());
  return fmt::format(
      "; one is running in '{}'{}: name it with --dir or ${}", live[0],
      live.size() == 1 ? std::string() : fmt::format(", and {} more beside it", live.size() - 1),
      kDirVariable);
}

}  // namespace filetimer::cli
