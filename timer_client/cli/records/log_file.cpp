// SPDX-License-Identifier: MIT
#include "timer_client/cli/records/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <memory>
#include <utility>

#include "common/run_folder.hpp"
#include "timer_client/cli/records/log_paths.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
// Of each of many logs that are merged one piece is in memory.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
// Each holds two descriptors; a shell may allow no more than 1,024.
constexpr std::size_t kManyLogs = 256;
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

// What is not allowed shows when the log that was one too many cannot be opened.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
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
  log.with_before_ = log.reads_before_ = with_rotated;
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

Result<bool> LogFile::read_piece(const RecordReader::Sink& sink) {
  const bool before = reads_before_ && before_;
  const int fd = before ? before_.get() : current_.get();
  const auto piece = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  const ssize_t bytes = retry_eintr([&] { return ::read(fd, piece.get(), kPieceBytes); });
  if (bytes < 0) {
    return system_error(fmt::format("cannot read '{}{}'", path_, before ? kRotatedSuffix : ""));
  }
  reader_.feed({piece.get(), static_cast<std::size_t>(bytes)}, sink);
  if (before && bytes == 0) {
    reads_before_ = false;
    reader_.finish(sink);
    return true;
  }
  offset_ += before ? 0 : bytes;
  return bytes > 0;
}

bool LogFile::can_be_read_again() const {
  return ::lseek(current_.get(), 0, SEEK_CUR) >= 0;
}

void LogFile::read_again() {
  for (const UniqueFd* file : {&before_, &current_}) {
    if (*file) {
      ::lseek(file->get(), 0, SEEK_SET);
    }
  }
  reads_before_ = with_before_;
  offset_ = 0;
  reader_ = RecordReader();
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

OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files) {
  LogPaths paths = find_logs(files);
  OpenedLogs opened{{}, std::move(paths.notes), std::move(paths.problems)};
  std::string hint;
  if (files.empty()) {
    const RunFolder folder = resolve_run_folder(dir);
    const Result<std::string> path = default_log_path(folder);
    if (!path) {
      opened.problems.push_back(path.error().message);
      return opened;
    }
    paths.logs.push_back({*path, true});
    if (!folder.was_named()) {
      hint = fmt::format(" (the default place: no FILE, no --dir, no ${})", kDirVariable);
    } else if (folder.source == FolderSource::kEnvironment) {
      hint = fmt::format(" (from ${})", kDirVariable);
    }
  }
  if (paths.logs.size() > kManyLogs) {
    allow_many_descriptors();
  }
  for (const LogPath& path : paths.logs) {
    if (auto log = LogFile::open(path.path, path.with_rotated)) {
      opened.logs.push_back(std::move(*log));
    } else {
      opened.problems.push_back(log.error().message + hint);
    }
  }
  return opened;
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
