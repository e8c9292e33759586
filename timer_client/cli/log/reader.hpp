// Bytes of a log in, records out. A log may end in half a line, hold a line of somebody else's or
// of a later schema: those are skipped and counted, never fatal. Memory is bounded by the longest
// record allowed, whatever the size of the file.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/posix.hpp"
#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {

// The word that names standard input in place of a file.
inline constexpr std::string_view kStandardInput = "-";
// The name that a log gets when it has grown past its limit is its own with this.
inline constexpr std::string_view kRotatedSuffix = ".1";

// One file of a log. Not for several threads.
//
//   while (const Record* const record = reader.next()) { ... }
//   if (!reader.problem().empty()) { ... }
class LogReader {
 public:
  LogReader(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  // Sets the size of a read, and so the memory that the reader takes while records are shorter.
  void set_block_bytes(std::size_t bytes) { block_bytes_ = bytes; }
  // From now on a last line without its newline waits for its rest, and next() goes on to what was
  // written since, also to the file that has taken this one's place. A rotated log gets no more.
  void follow() { is_followed_ = !path_.ends_with(kRotatedSuffix); }

  // Returns the next record, which is valid until the next call on any reader, except for its line,
  // which is valid until the next call on this one. Null at the end, or if no more can be read.
  const Record* next();
  // Begins again; false if the file can be read once only, as a pipe.
  bool rewind();

  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns why no more can be read; empty: it can.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // Returns the number of lines that are no records.
  [[nodiscard]] std::size_t skipped() const { return skipped_; }

 private:
  std::optional<std::string_view> next_line();
  bool fill();
  bool go_on();

  std::string path_;
  UniqueFd file_;
  UniqueFd next_;  // has taken the place of file_, which is read to its end first
  bool is_followed_ = false;

  std::size_t block_bytes_ = std::size_t{256} << 10;
  std::string buffer_;
  std::size_t begin_ = 0;     // of the next line in buffer_
  std::size_t searched_ = 0;  // the next newline is not before this

  std::optional<Record> record_;
  std::string problem_;
  std::size_t skipped_ = 0;
};

}  // namespace filetimer::cli
