// SPDX-License-Identifier: MIT
#include "timer_client/cli/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/run_folder.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
// Files that one look goes on to, so that a writer that never pauses cannot keep it.
constexpr int kFilesALook = 4;

bool is_same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_same_file(int a, int b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && is_same_file(one, other);
}

UniqueFd open_to_read(const std::string& path) {
  return UniqueFd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
}

}  // namespace

Result<LogFile> LogFile::open(const std::string& path, bool with_rotated) {
  LogFile log(path);
  log.current_ = open_to_read(path);
  if (!log.current_ && !(with_rotated && errno == ENOENT)) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  // Opened second: if the server rotates between the two, both are the same file.
  log.before_ = open_to_read(path + kRotatedSuffix);
  log.reads_before_ = with_rotated;
  if (!log.current_) {
    log.current_ = std::move(log.before_);
  } else if (log.before_ && is_same_file(log.current_.get(), log.before_.get())) {
    log.before_.reset();
  }
  if (!log.current_) {
    return system_error(fmt::format("cannot open '{}'", path), ENOENT);
  }
  return log;
}

Result<bool> LogFile::drain(int fd, const std::string& name, const RecordReader::Sink& sink) {
  std::vector<char> chunk(kChunkBytes);
  for (;;) {
    const ssize_t bytes = retry_eintr([&] { return ::read(fd, chunk.data(), chunk.size()); });
    if (bytes < 0) {
      return system_error(fmt::format("cannot read '{}'", name));
    }
    if (bytes == 0) {
      return true;
    }
    offset_ += bytes;
    if (!reader_.feed({chunk.data(), static_cast<std::size_t>(bytes)}, sink)) {
      return false;
    }
  }
}

Result<bool> LogFile::read_to_end(const RecordReader::Sink& sink) {
  if (std::exchange(reads_before_, false) && before_) {
    const auto read = drain(before_.get(), path_ + kRotatedSuffix, sink);
    if (!read || !*read || !reader_.finish(sink)) {
      return read ? Result<bool>(false) : read;
    }
    offset_ = 0;
  }
  return drain(current_.get(), path_, sink);
}

UniqueFd LogFile::open_successor() const {
  struct stat here {};
  struct stat there {};
  if (::fstat(current_.get(), &here) != 0 || ::stat(path_.c_str(), &there) != 0 ||
      is_same_file(here, there)) {
    return {};  // the same, or removed: another may come in its place
  }
  UniqueFd next = open_to_read(path_);
  // Rotated twice since the last look: then the one that came in between stands at PATH.1.
  UniqueFd between = open_to_read(path_ + kRotatedSuffix);
  const auto is_other_than = [&between](const UniqueFd& known) {
    return !known || !is_same_file(between.get(), known.get());
  };
  return between && is_other_than(current_) && is_other_than(before_) && is_other_than(next)
             ? std::move(between)
             : std::move(next);
}

Result<bool> LogFile::read_news(const RecordReader::Sink& sink) {
  auto read = drain(current_.get(), path_, sink);
  struct stat here {};
  if (!read || !*read || ::fstat(current_.get(), &here) != 0) {
    return read;
  }
  if (S_ISREG(here.st_mode) && here.st_size < offset_) {
    // Cut short by somebody, as logrotate's copytruncate does: what is there now is new.
    reader_.forget_half_line();
    offset_ = ::lseek(current_.get(), 0, SEEK_SET);
    return drain(current_.get(), path_, sink);
  }
  for (int files = 0; files < kFilesALook; ++files) {
    UniqueFd next = open_successor();
    if (!next) {
      break;
    }
    // Once more to the end: the server may have written between the read and the rename.
    read = drain(current_.get(), path_, sink);
    if (!read || !*read) {
      return read;
    }
    if (!reader_.finish(sink)) {
      return false;
    }
    before_ = std::move(current_);
    current_ = std::move(next);
    offset_ = 0;
    read = drain(current_.get(), path_, sink);
    if (!read || !*read) {
      return read;
    }
  }
  return read;
}

Result<std::vector<LogFile>> open_logs(const std::string& dir,
                                       const std::vector<std::string>& files) {
  std::vector<LogFile> logs;
  const auto add = [&logs](Result<LogFile> log) -> Status {
    if (!log) {
      return tl::unexpected<Error>(std::move(log.error()));
    }
    logs.push_back(std::move(*log));
    return {};
  };
  for (const std::string& file : files) {
    if (Status added = add(LogFile::open(file, false)); !added) {
      return tl::unexpected<Error>(std::move(added.error()));
    }
  }
  if (!files.empty()) {
    return logs;
  }
  const RunFolder folder = resolve_run_folder(dir);
  const Result<std::string> path = default_log_path(folder);
  if (!path) {
    return tl::unexpected<Error>(path.error());
  }
  if (Status added = add(LogFile::open(*path, true)); !added) {
    Error error = std::move(added.error());
    if (!folder.was_named()) {
      error.message += fmt::format(" (the default place: no FILE, no --dir, no ${})", kDirVariable);
    } else if (folder.source == FolderSource::kEnvironment) {
      error.message += fmt::format(" (from ${})", kDirVariable);
    }
    return tl::unexpected<Error>(std::move(error));
  }
  return logs;
}

Status read_merged(std::vector<LogFile>& logs, bool more_to_come, const RecordReader::Sink& sink) {
  std::vector<Record> records;
  const RecordReader::Sink collect = [&records](Record&& record) {
    // A record without a time stays behind the one that it was written after.
    if (!record.time_us && !records.empty()) {
      record.time_us = records.back().time_us;
    }
    records.push_back(std::move(record));
    return true;
  };
  const RecordReader::Sink& take = logs.size() > 1 ? collect : sink;
  for (LogFile& log : logs) {
    const auto read = log.read_to_end(take);
    if (!read) {
      return tl::unexpected<Error>(read.error());
    }
    if (!*read || (!more_to_come && !log.finish(take))) {
      return {};
    }
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.time_us < b.time_us; });
  for (Record& record : records) {
    if (!sink(std::move(record))) {
      break;
    }
  }
  return {};
}

std::string skipped_text(const std::vector<LogFile>& logs) {
  std::size_t skipped = 0;
  for (const LogFile& log : logs) {
    skipped += log.reader().skipped();
  }
  if (skipped == 0) {
    return {};
  }
  return fmt::format("skipped {} in {}",
                     skipped == 1 ? std::string("1 line that is no record")
                                  : fmt::format("{} lines that are no records", skipped),
                     names_of(logs));
}

std::string names_of(const std::vector<LogFile>& logs) {
  if (logs.size() == 1) {
    return fmt::format("'{}'", logs[0].path());
  }
  return fmt::format("'{}' and {} more file{}", logs[0].path(), logs.size() - 1,
                     logs.size() == 2 ? "" : "s");
}

}  // namespace filetimer::cli
