// The records of many logs as one: each log in its own order, and all of them by their wall-clock
// time. Of each log a piece is in memory and no more, however long they are and however many.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "timer_client/cli/log/log_file.hpp"

namespace filetimer::cli {

struct Merged {
  std::size_t repeated = 0;           // records left out: another log had the same line
  std::vector<std::string> problems;  // logs that could not be read to their end
};

// A line that will be completed by further writes is left for read_news() if `more_to_come`.
Merged read_merged(std::vector<LogFile>& logs, bool more_to_come, const RecordReader::Sink& sink);

}  // namespace filetimer::cli
