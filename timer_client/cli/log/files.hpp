// The logs that the FILE arguments of `log` and `show` name, and their records as those of one log.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {

struct OpenedLogs {
  std::vector<LogReader> logs;        // each file once
  std::vector<std::string> problems;  // what was meant and could not be opened
};

// Opens what `files` name: logs; `-`, standard input; and folders, with their logs (*.jsonl, and
// *.jsonl.1, the rotated ones) and those of the folders below, as when each host has one. Links to
// folders are not followed. Without any: the log of the last server of the runtime directory `dir`
// (which may be empty), and its rotated predecessor.
OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files);

// Returns what is worth a line on standard error: logs that could not be read to their end, and how
// many lines were no records.
std::vector<std::string> problems_of(const std::vector<LogReader>& logs);
std::string skipped_text(const std::vector<LogReader>& logs);

// Returns "'a.jsonl'", "'a.jsonl' and 3 more files", "no log".
std::string names_of(const std::vector<LogReader>& logs);

// The records that came before: a server writes records again if they may be lost, and a log may be
// there as a copy.
class KnownRecords {
 public:
  // Returns false for a record with an id, or of an ended worker, that was added before.
  bool add(const Record& record);

 private:
  std::unordered_set<std::size_t> known_;  // the hashes of lines
};

// Gives `sink` the records of all logs: those of each log in its order, all by their wall-clock
// time. Each record is valid until `sink` returns. Ends when it returns false. Leaves out those
// that are known. A block of each log is in memory and no more, however long they are and however
// many.
void read_merged(std::vector<LogReader>& logs, KnownRecords& known,
                 const std::function<bool(const Record&)>& sink);
void read_merged(std::vector<LogReader>& logs, const std::function<bool(const Record&)>& sink);

}  // namespace filetimer::cli
