// SPDX-License-Identifier: MIT
#include "timer_client/cli/servers_below.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "common/run_folder.hpp"
#include "timer_client/src/server/server_look.hpp"

namespace filetimer::cli {
namespace {

// Servers that were killed leave theirs behind.
constexpr int kMostLookedAt = 1024;

}  // namespace

std::string servers_below(const std::string& dir) {
  std::vector<std::string> live;
  int looked_at = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kFreshFolderPrefix) &&
        looked_at++ < kMostLookedAt && look_for_server(entry->path().string()).is_there) {
      live.push_back(entry->path().string());
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
