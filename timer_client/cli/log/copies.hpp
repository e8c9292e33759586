// Finds logs that are in a folder twice. rsync often fills such folders, and an older copy of a log
// is a beginning of the log.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "common/posix.hpp"

namespace filetimer::cli {

struct LogFile {
  std::string path;
  UniqueFd fd;
};

// The files of one log, in the order in which they are read.
struct LogFiles {
  std::string path;
  std::vector<LogFile> files;
};

// Removes each file that is the beginning of another one, or the same, and each log without a file
// left. Returns what is worth a line on standard error; empty: there are no copies. Reads the first
// line of each file and the ends of copies only, and leaves the offsets of the files alone.
std::string leave_out_copies(std::vector<LogFiles>& logs);

}  // namespace filetimer::cli
