// Bytes of a log in, records out; and the records of all logs that a user names as those of one. A
// log may end in half a line, hold a line of somebody else's or of a later schema: those are
// skipped and counted, never fatal. A record is read where it stands: nothing is copied, since logs
// may have gigabytes. Memory is bounded by the longest record allowed, whatever the size of the
// file.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/json_fields.hpp"
#include "common/posix.hpp"

namespace filetimer::cli {

namespace dom = simdjson::dom;

inline constexpr std::int64_t kSchema = 1;
inline constexpr std::string_view kNoJobId = "none";  // torchrun's, where none is given

// Values that a record may lack.
using Integer = std::optional<std::int64_t>;
using Number = std::optional<double>;

// The fields by which records are chosen, merged and combined. What is absent, or not of the type
// that it should have, is empty. All texts are views, see parse_record().
struct Record {
  std::string_view line;  // without its newline
  dom::object fields;

  std::string_view event;
  std::string_view host;
  std::string_view boot_id;
  std::string_view id;
  std::string_view incident;
  std::string_view scope;
  std::string_view job_id;
  Integer time_us;  // wall clock, since the epoch
  Integer mono_ns;
  Integer pid;
  Integer rank;

  // Any other field.
  [[nodiscard]] std::string text(std::string_view key) const { return text_at(fields, key); }
  [[nodiscard]] Integer integer(std::string_view key) const { return integer_at(fields, key); }
  [[nodiscard]] Number number(std::string_view key) const { return number_at(fields, key); }
};

// Returns nothing if `line` is no record of schema 1. The record is valid for as long as `line` and
// until `parser` is used again.
std::optional<Record> parse_record(dom::parser& parser, std::string_view line);

// Does the same with a parser that this thread shares, as large as the longest line so far.
std::optional<Record> parse_record(std::string_view line);

// --- events ---

struct Event {
  std::string_view name;
  // `log` leaves it out by default: `show` prints it with its expiry, or `list --stats` adds it up.
  bool is_detail = false;
  std::array<std::string_view, 6> fields{};  // that say what happened
};

// Returns every event that a log of schema 1 may hold.
std::span<const Event> known_events();
// Returns that of the record; of an unknown one, an event without a name.
const Event& event_of(const Record& record);

// Returns what a record says beyond who and when, in a few words.
std::string in_few_words(const Record& record);

// --- logs ---

// The word that names standard input in place of a file.
inline constexpr std::string_view kStandardInput = "-";
// The name that a log gets when it has grown past its limit is its own with this.
inline constexpr std::string_view kRotatedSuffix = ".1";

// One file of a log. Not for several threads.
class LogReader {
 public:
  LogReader(std::string path, UniqueFd file)
      : path_(std::move(path)), file_(std::move(file)), start_(::lseek(file_.get(), 0, SEEK_CUR)) {}

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
  off_t start_;    // where the first record is: a shell may have read a part of standard input
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

// --- the logs that a user names ---

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

// The records that came before, as hashes of their lines: a server writes records again if they may
// be lost, and a log may be there as a copy.
using KnownRecords = std::unordered_set<std::size_t>;
// Returns false for a record with an id, or of an ended worker, that is known. Notes the record.
bool is_new(const Record& record, KnownRecords& known);

// Gives `sink` the records of all logs: those of each log in its order, all by their wall-clock
// time. Each record is valid until `sink` returns. Ends when it returns false. Leaves out those
// that came before, and returns what is known then. A block of each log is in memory and no more,
// however long they are and however many.
KnownRecords read_merged(std::vector<LogReader>& logs,
                         const std::function<bool(const Record&)>& sink);

}  // namespace filetimer::cli
