// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/limits.hpp"
#include "common/result.hpp"

namespace filetimer::cli {
namespace {

constexpr std::string_view kBlank = " \t\r";
// A record begins with this. Inside a JSON string its quote would be escaped, so where this stands
// in a line a record begins, or the line is no JSON.
constexpr std::string_view kRecordStart = "{\"schema\"";

}  // namespace

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
    if (record_ && is_new()) {
      return &*record_;
    }
  }
  return nullptr;
}

bool LogReader::is_new() {
  return !record_->mono_ns || (record_->id.empty() && record_->event != "worker_ended") ||
         known_.insert(std::hash<std::string_view>{}(record_->line)).second;
}

std::optional<std::string_view> LogReader::next_line() {
  for (;;) {
    const std::size_t newline = buffer_.find('\n', begin_ + searched_);
    const std::size_t size = std::min(newline, buffer_.size()) - begin_;
    if (newline == buffer_.npos) {
      searched_ = size;
      if (fill()) {
        continue;
      }
      // The end of a file: what has no newline is a line, too, unless its rest may come.
      if ((searched_ == 0 && !is_too_long_) || (is_followed_ && file_ + 1 == files_.size())) {
        if (!go_on()) {
          return std::nullopt;
        }
        continue;
      }
    }
    const auto line = std::string_view(buffer_).substr(begin_, size);
    begin_ = std::min(begin_ + size + 1, buffer_.size());
    searched_ = 0;
    if (!std::exchange(is_too_long_, false) && size <= kMaxRecordBytes) {
      return line;
    }
    ++skipped_;
  }
}

// Reads a block behind what there is. False at the end of the file, or if it cannot be read.
bool LogReader::fill() {
  if (!problem_.empty()) {
    return false;
  }
  buffer_.erase(0, std::exchange(begin_, 0));
  if (buffer_.size() > kMaxRecordBytes) {  // one byte over the limit is enough to know
    is_too_long_ = true;
    buffer_.clear();
    searched_ = 0;
  }
  const std::size_t kept = buffer_.size();
  buffer_.reserve(kept + block_bytes_ + kLinePadding);
  buffer_.resize(kept + block_bytes_);
  const int fd = files_[file_].get();
  const ssize_t bytes =
      retry_eintr([&] { return ::read(fd, buffer_.data() + kept, block_bytes_); });
  if (bytes < 0) {
    const char* const rotated = file_ + 1 < files_.size() ? kRotatedSuffix : "";
    problem_ = system_error(fmt::format("cannot read '{}{}'", path_, rotated)).value().message;
  }
  buffer_.resize(kept + static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return bytes > 0;
}

// Returns whether another file follows the one that was read to its end.
bool LogReader::go_on() {
  if (!problem_.empty()) {
    return false;
  }
  if (file_ + 1 < files_.size()) {
    ++file_;
    return true;
  }
  struct stat here {};
  struct stat there {};
  if (!is_followed_ || ::fstat(files_[file_].get(), &here) != 0 || !S_ISREG(here.st_mode)) {
    return false;
  }
  if (::stat(path_.c_str(), &there) != 0 ||
      (here.st_dev == there.st_dev && here.st_ino == there.st_ino)) {
    return false;
  }
  UniqueFd next(retry_eintr([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!next) {
    return false;
  }
  // This one is read to its end once more: the server may have written to it before the rename.
  UniqueFd current = std::move(files_[file_]);
  files_.clear();
  files_.push_back(std::move(current));
  files_.push_back(std::move(next));
  file_ = 0;
  return true;
}

bool LogReader::rewind() {
  for (const UniqueFd& file : files_) {
    if (::lseek(file.get(), 0, SEEK_SET) < 0) {
      return false;
    }
  }
  file_ = begin_ = searched_ = skipped_ = 0;
  buffer_.clear();
  is_too_long_ = false;
  known_.clear();
  return true;
}

}  // namespace filetimer::cli
