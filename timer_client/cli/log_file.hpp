// Log files as the commands read them: which ones are meant, their rotated predecessor first, once
// to their end or for as long as they grow, and several of them merged in order of time.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_client/cli/log_reader.hpp"

namespace filetimer::cli {

// The name that a log gets when it has grown past its limit.
inline constexpr const char* kRotatedSuffix = ".1";

class LogFile {
 public:
  // `with_rotated`: PATH.1 is read before it, if it is there.
  static Result<LogFile> open(const std::string& path, bool with_rotated);

  // What there is to its end, which need not be the end of a line. The value is false once the
  // sink wanted no more.
  Result<bool> read_to_end(const RecordReader::Sink& sink);
  // No more will come: the last line may lack its newline.
  bool finish(const RecordReader::Sink& sink) { return reader_.finish(sink); }
  // What has come since, also in the file that has taken this one's place or after it was cut.
  Result<bool> read_news(const RecordReader::Sink& sink);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const RecordReader& reader() const { return reader_; }

 private:
  explicit LogFile(std::string path) : path_(std::move(path)) {}
  Result<bool> drain(int fd, const std::string& name, const RecordReader::Sink& sink);

  std::string path_;
  // Opens what has taken current_'s place; none: nothing has.
  [[nodiscard]] UniqueFd open_successor() const;

  UniqueFd current_;
  // What stands at PATH.1 and came before current_. Held so that no later file gets its inode.
  UniqueFd before_;
  bool reads_before_ = false;  // it is still to be read
  std::int64_t offset_ = 0;    // how much of current_ was read
  RecordReader reader_;
};

// The logs named by FILE arguments, each by itself; without any, the log of the run folder of
// `dir` (which may be empty) with its rotated predecessor. An error names the path that was tried.
Result<std::vector<LogFile>> open_logs(const std::string& dir,
                                       const std::vector<std::string>& files);

// All records there are. One file keeps its own order, several are merged in order of `time`. Lines
// that will be completed by further writes are left for read_news() if `more_to_come`.
Status read_merged(std::vector<LogFile>& logs, bool more_to_come, const RecordReader::Sink& sink);

// "skipped 2 lines that are no records in 'x.jsonl'", empty when none was.
std::string skipped_text(const std::vector<LogFile>& logs);

// "'a.jsonl'", "'a.jsonl' and 3 more files".
std::string names_of(const std::vector<LogFile>& logs);

}  // namespace filetimer::cli
