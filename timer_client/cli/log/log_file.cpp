// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "timer_client/cli/log/log_paths.hpp"

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

// Each log holds two, and a shell may allow no more than 1,024. What is not allowed shows when the
// log that was one too many cannot be opened.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

bool is_out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE;
}

// What is meant where no file is named.
Result<std::vector<LogPath>> own_logs(const RunFolder& folder) {
  std::vector<LogPath> logs;
  const auto path = default_log_path(folder);
  std::error_code none;
  const std::string linked =
      std::filesystem::read_symlink(folder.path(kLogLinkName), none).string();
  if (!linked.empty()) {
    logs.push_back(
        {linked, true, fmt::format(" (the log of the last server in '{}')", folder.dir)});
    // Servers around a COMMAND, whose folders have gone with them, wrote there.
    if (!folder.was_named() && path && *path != linked && ::access(path->c_str(), F_OK) == 0) {
      logs.push_back({*path, true, {}});
    }
    return logs;
  }
  if (!path) {
    return tl::unexpected<Error>(path.error());
  }
  logs.push_back({*path, true, {}});
  if (!folder.was_named()) {
    logs[0].why = fmt::format(" (the default place: no FILE, no --dir, no ${})", kDirVariable);
  } else if (folder.source == FolderSource::kEnvironment) {
    logs[0].why = fmt::format(" (from ${})", kDirVariable);
  }
  return logs;
}

}  // namespace

Result<LogFile> LogFile::open(const std::string& path, bool with_rotated,
                              std::vector<std::string>& problems) {
  LogFile log(path);
  log.current_ = open_to_read(path);
  if (!log.current_ && !(with_rotated && errno == ENOENT)) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  // Opened second: if the server rotates between the two, both are the same file.
  log.before_ = open_to_read(path + kRotatedSuffix);
  if (with_rotated && !log.before_ && errno != ENOENT) {
    Error error = system_error(fmt::format("cannot open '{}{}'", path, kRotatedSuffix)).value();
    if (!log.current_) {
      return tl::unexpected<Error>(std::move(error));
    }
    problems.push_back(std::move(error.message));
  }
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

tl::unexpected<Error> LogFile::broken(const std::string& name) {
  is_broken_ = true;
  return system_error(fmt::format("cannot read '{}'", name));
}

Result<bool> LogFile::drain(int fd, const std::string& name, const RecordReader::Sink& sink) {
  std::vector<char> chunk(kChunkBytes);
  for (;;) {
    const ssize_t bytes = retry_eintr([&] { return ::read(fd, chunk.data(), chunk.size()); });
    if (bytes < 0) {
      return broken(name);
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

Result<bool> LogFile::read_piece(std::size_t most, const RecordReader::Sink& sink) {
  const bool before = reads_before_ && before_;
  const int fd = before ? before_.get() : current_.get();
  const auto piece = std::make_unique_for_overwrite<char[]>(most);
  const ssize_t bytes = retry_eintr([&] { return ::read(fd, piece.get(), most); });
  if (bytes < 0) {
    return broken(before ? path_ + kRotatedSuffix : path_);
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
  if (files.empty()) {
    auto own = own_logs(resolve_run_folder(dir));
    if (!own) {
      opened.problems.push_back(std::move(own.error().message));
      return opened;
    }
    paths.logs = std::move(*own);
  }
  allow_many_descriptors();
  for (std::size_t i = 0; i < paths.logs.size(); ++i) {
    const LogPath& path = paths.logs[i];
    if (auto log = LogFile::open(path.path, path.with_rotated, opened.problems)) {
      opened.logs.push_back(std::move(*log));
    } else if (is_out_of_descriptors(log.error().errno_value) && i + 1 < paths.logs.size()) {
      opened.problems.push_back(fmt::format("{}, nor the {} logs after it", log.error().message,
                                            paths.logs.size() - i - 1));
      break;
    } else {
      opened.problems.push_back(log.error().message + path.why);
    }
  }
  return opened;
}

OpenedLogs open_own_logs(const RunFolder& folder) {
  OpenedLogs opened;
  for (const LogPath& path : own_logs(folder).value_or(std::vector<LogPath>{})) {
    struct stat st {};
    if (::stat(path.path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
      continue;
    }
    if (auto log = LogFile::open(path.path, path.with_rotated, opened.problems)) {
      opened.logs.push_back(std::move(*log));
    } else if (log.error().errno_value != ENOENT) {
      opened.problems.push_back(log.error().message);
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
