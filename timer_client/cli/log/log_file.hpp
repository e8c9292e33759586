// Log files as the commands read them: which ones are meant, their rotated predecessor first, once
// to their end or for as long as they grow, and several of them merged in order of time.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"
#include "timer_client/cli/log/log_reader.hpp"

namespace filetimer::cli {

// The name that a log gets when it has grown past its limit.
inline constexpr const char* kRotatedSuffix = ".1";

class LogFile {
 public:
  // `with_rotated`: PATH.1 is read before it, if it is there; what is there and cannot be opened is
  // one of the `problems`.
  static Result<LogFile> open(const std::string& path, bool with_rotated,
                              std::vector<std::string>& problems);

  // The next piece of what there is, `bytes` at most, which need not end where a line does. The
  // value is false at the end.
  Result<bool> read_piece(std::size_t bytes, const RecordReader::Sink& sink);
  // Whether read_again() does what it says: a pipe is read once.
  [[nodiscard]] bool can_be_read_again() const;
  // From its beginning, as if nothing had been read.
  void read_again();
  // No more will come: the last line may lack its newline.
  bool finish(const RecordReader::Sink& sink) { return reader_.finish(sink); }
  // What has come since, also in the file that has taken this one's place or after it was cut.
  Result<bool> read_news(const RecordReader::Sink& sink);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const RecordReader& reader() const { return reader_; }
  // A read has failed.
  [[nodiscard]] bool is_broken() const { return is_broken_; }

 private:
  explicit LogFile(std::string path) : path_(std::move(path)) {}
  tl::unexpected<Error> broken(const std::string& name);
  Result<bool> drain(int fd, const std::string& name, const RecordReader::Sink& sink);

  std::string path_;
  // Opens what has taken current_'s place; none: nothing has.
  [[nodiscard]] UniqueFd open_successor() const;

  UniqueFd current_;
  // What stands at PATH.1 and came before current_. Held so that no later file gets its inode.
  UniqueFd before_;
  bool with_before_ = false;   // it belongs to what is read
  bool reads_before_ = false;  // it is still to be read
  bool is_broken_ = false;
  std::int64_t offset_ = 0;  // how much of current_ was read
  RecordReader reader_;
};

struct OpenedLogs {
  std::vector<LogFile> logs;
  std::vector<std::string> notes;     // worth a line, nothing is missing
  std::vector<std::string> problems;  // what was meant and could not be opened
};

// The logs that are meant by FILE arguments; without any, the log of the last server of the run
// folder of `dir` (which may be empty) with its rotated predecessor.
OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files);

// The log of the last server of `folder`, as far as it is there. Left out: what is no regular file,
// and may have no end.
OpenedLogs open_own_logs(const RunFolder& folder);

// "skipped 2 lines that are no records in 'x.jsonl'", empty when none was.
std::string skipped_text(const std::vector<LogFile>& logs);

// "'a.jsonl'", "'a.jsonl' and 3 more files".
std::string names_of(const std::vector<LogFile>& logs);

}  // namespace filetimer::cli
