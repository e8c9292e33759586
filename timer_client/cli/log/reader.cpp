// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/limits.hpp"
#include "common/result.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

std::string_view view_at(dom::object object, std::string_view key) {
  std::string_view text;
  return object.at_key(key).get(text) == simdjson::SUCCESS ? text : std::string_view{};
}

// Returns a duration of 0 or more.
Duration length_at(dom::object object, std::string_view key, Duration otherwise = {}) {
  constexpr double kLongestNs = 9e18;  // 2^63 does not fit
  const auto seconds = number_at(object, key);
  return seconds ? Duration{std::llround(std::clamp(*seconds * 1e9, 0.0, kLongestNs))} : otherwise;
}

// Returns whether there is one.
bool read_histogram(dom::object object, std::string_view key, Histogram& histogram) {
  bool has_buckets = false;
  for (const dom::element element : elements_at(object, key)) {
    dom::array pair;
    if (element.get_array().get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      const std::int64_t begin = as_integer(pair.at(0).value_unsafe()).value_or(0);
      const std::int64_t scopes = as_integer(pair.at(1).value_unsafe()).value_or(0);
      histogram[bucket_of(begin)] += static_cast<std::uint64_t>(std::max<std::int64_t>(scopes, 0));
      has_buckets = true;
    }
  }
  return has_buckets;
}

constexpr std::string_view kBlank = " \t\r";
// A record begins with this. Inside a JSON string its quote would be escaped, so where this stands
// in a line a record begins, or the line is no JSON.
constexpr std::string_view kRecordStart = "{\"schema\"";

}  // namespace

// --- records ---

std::optional<Record> parse_record(dom::parser& parser, std::string_view line) {
  dom::object object;
  if (parser.parse(line.data(), line.size()).get_object().get(object) != simdjson::SUCCESS ||
      integer_at(object, "schema") != kSchema) {
    return std::nullopt;
  }
  Record record{.line = line,
                .fields = object,
                .event = view_at(object, "event"),
                .host = view_at(object, "host"),
                .boot_id = view_at(object, "boot_id"),
                .id = view_at(object, "id"),
                .incident = view_at(object, "incident"),
                .scope = view_at(object, "scope"),
                .job_id = view_at(object, "job_id"),
                .time_us = parse_rfc3339(view_at(object, "time")),
                .mono_ns = integer_at(object, "mono_ns"),
                .pid = integer_at(object, "pid"),
                .rank = integer_at(object, "rank")};
  return record.event.empty() ? std::nullopt : std::optional(record);
}

std::optional<Record> parse_record(std::string_view line) {
  static thread_local dom::parser parser{2 * kMaxRecordBytes};
  return parse_record(parser, line);
}

ScopeStatistics read_statistics(dom::object object) {
  ScopeStatistics statistics;
  statistics.count = static_cast<std::uint64_t>(count_at(object, "count"));
  statistics.longest = length_at(object, "longest_s");
  statistics.longest_first = length_at(object, "first_s");
  statistics.timeout = length_at(object, "timeout_s", kForever);
  read_histogram(object, "histogram_ns", statistics.histogram);
  if (!read_histogram(object, "first_histogram_ns", statistics.first_histogram) &&
      statistics.count > 0) {
    statistics.first_histogram[bucket_of(statistics.longest_first.count())] = 1;
  }
  return statistics;
}

// --- logs ---

const Record* LogReader::next() {
  while (auto line = next_line()) {
    const std::size_t begin = line->find_first_not_of(kBlank);
    if (begin == line->npos) {
      continue;  // nothing was lost
    }
    *line = line->substr(begin, line->find_last_not_of(kBlank) - begin + 1);
    record_ = parse_record(*line);
    if (!record_) {
      ++skipped_;
      // A writer that died in the middle of a line leaves its half in front of the next record.
      const std::size_t next = line->rfind(kRecordStart);
      if (next != line->npos && next > 0) {
        record_ = parse_record(line->substr(next));
      }
    }
    if (record_) {
      return &*record_;
    }
  }
  return nullptr;
}

std::optional<std::string_view> LogReader::next_line() {
  for (;;) {
    std::size_t end = buffer_.find('\n', searched_);
    if (end == buffer_.npos) {
      if (fill()) {
        continue;
      }
      // What has no newline at the end of a file is a line, too, unless its rest may come.
      if (begin_ == buffer_.size() || (is_followed_ && !next_)) {
        if (!go_on()) {
          return std::nullopt;
        }
        continue;
      }
      end = buffer_.size();
    }
    const auto line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = searched_ = std::min(end + 1, buffer_.size());
    if (line.size() <= kMaxRecordBytes) {
      return line;
    }
    ++skipped_;
  }
}

// Reads a block behind what there is, in which no line ends. False at the end of the file, or if it
// cannot be read.
bool LogReader::fill() {
  if (!problem_.empty()) {
    return false;
  }
  buffer_.erase(0, std::exchange(begin_, 0));
  // One byte over the limit is enough to know that the line is too long.
  searched_ = std::min(buffer_.size(), kMaxRecordBytes + 1);
  buffer_.resize(searched_ + block_bytes_);
  const ssize_t bytes =
      retry_eintr([&] { return ::read(file_.get(), &buffer_[searched_], block_bytes_); });
  if (bytes < 0) {
    problem_ = system_error(fmt::format("cannot read '{}'", path_)).value().message;
  }
  buffer_.resize(searched_ + static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return bytes > 0;
}

// Returns whether there is more to read: the file that has taken this one's place, or of this one
// what the server wrote to it before the rename.
bool LogReader::go_on() {
  if (next_) {
    file_ = std::move(next_);
    return true;
  }
  struct stat here {};
  struct stat there {};
  if (is_followed_ && problem_.empty() && ::fstat(file_.get(), &here) == 0 &&
      ::stat(path_.c_str(), &there) == 0 &&
      (here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
    next_ = open_file(path_.c_str(), O_RDONLY);
  }
  return bool(next_);
}

bool LogReader::rewind() {
  begin_ = searched_ = skipped_ = 0;
  buffer_.clear();
  return ::lseek(file_.get(), 0, SEEK_SET) == 0;
}

}  // namespace filetimer::cli
