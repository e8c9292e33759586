// The logs that the FILE arguments of `log` and `show` name, and their records as those of one log.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/run_folder.hpp"
#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {

struct OpenedLogs {
  std::vector<LogReader> logs;        // each file once
  std::vector<std::string> notes;     // worth a line, nothing is missing
  std::vector<std::string> problems;  // what was meant and could not be opened
};

// Opens what `files` name: logs; `-`, standard input; folders, with their logs (*.jsonl) and those
// of the folders below, as when each host has one; and patterns that no shell has expanded. Without
// any: the log of the last server of the runtime directory `dir` (which may be empty). The rotated
// predecessor of a log belongs to it, except where the log itself was named.
OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files);

// Opens the log of the last server of `folder`, as far as it is there. What is no regular file may
// have no end, and is left out.
OpenedLogs open_own_logs(const RunFolder& folder);

// Returns what is worth a line on standard error: logs that could not be read to their end, and how
// many lines were no records.
std::vector<std::string> problems_of(const std::vector<LogReader>& logs);
std::string skipped_text(const std::vector<LogReader>& logs);

// Returns "'a.jsonl'", "'a.jsonl' and 3 more files", "no log".
std::string names_of(const std::vector<LogReader>& logs);

// Gives `sink` the records of all logs: those of each log in its order, all by their wall-clock
// time. Each record is valid until `sink` returns. Ends when it returns false. A block of each log
// is in memory and no more, however long they are and however many.
void read_merged(std::vector<LogReader>& logs, const std::function<bool(const Record&)>& sink);

}  // namespace filetimer::cli
