// Which logs are meant by the FILE arguments of `log` and `show`: a file, a folder (its logs and
// those of the folders below it, as when each host has one), or a pattern that no shell has
// expanded.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace filetimer::cli {

struct LogPath {
  std::string path;
  bool with_rotated = false;  // PATH.1 is meant too
  std::string why;            // it is meant, where nobody named it: " (from $FILETIMER_DIR)"
};

struct LogPaths {
  std::vector<LogPath> logs;          // each file once
  std::vector<std::string> notes;     // worth a line, nothing is missing
  std::vector<std::string> problems;  // a word that names no log, a folder that cannot be read
};

LogPaths find_logs(const std::vector<std::string>& words);

}  // namespace filetimer::cli
