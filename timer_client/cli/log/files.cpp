// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>

#include "common/directory.hpp"
#include "common/result.hpp"

namespace filetimer::cli {
namespace {

constexpr std::string_view kLogSuffix = ".jsonl";
constexpr std::string_view kPatternLetters = "*?[";

struct LogPath {
  std::string path;
  bool with_rotated = false;  // PATH.1 is meant, too
  std::string why;            // it is meant, where it was not named: " (from $FILETIMER_DIR)"
};

std::string why_not(const std::string& what, const std::string& path) {
  return system_error(fmt::format("{} '{}'", what, path)).value().message;
}

// --- which files are meant ---

class Finder {
 public:
  void take_word(const std::string& word) {
    struct stat status {};
    if (word == kStandardInput) {
      // A file that is standard input, too, and named, is read once.
      if (::fstat(STDIN_FILENO, &status) == 0) {
        add(word, false, status, true);
      } else {
        problems.push_back(why_not("cannot read", "standard input"));
      }
    } else if (::stat(word.c_str(), &status) == 0) {
      take_named(word, status);
    } else if (word.find_first_of(kPatternLetters) != word.npos) {
      take_pattern(word);
    } else {
      problems.push_back(why_not("cannot open", word));
    }
  }

  std::vector<LogPath> logs;
  std::vector<std::string> notes;
  std::vector<std::string> problems;

 private:
  void take_named(const std::string& path, const struct stat& status) {
    if (!S_ISDIR(status.st_mode)) {
      add(path, false, status, true);
      return;
    }
    const std::size_t before = found_ + problems.size();
    take_folder(path);
    if (before == found_ + problems.size()) {
      problems.push_back(fmt::format("no log (*{}) in folder '{}'", kLogSuffix, path));
    }
  }

  void take_pattern(const std::string& pattern) {
    glob_t matches{};
    (void)::glob(pattern.c_str(), 0, nullptr, &matches);
    const std::unique_ptr<glob_t, void (*)(glob_t*)> freed(&matches, ::globfree);
    bool any = false;
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
      const std::string path = matches.gl_pathv[i];
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0) {
        any = true;  // a link to nowhere stands for a log that should be there
        problems.push_back(why_not("cannot open", path));
      } else if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
        // The pipe of a runtime directory would be waited for, its other files are no logs.
        any = true;
        take_named(path, status);
      }
    }
    if (!any) {
      problems.push_back(fmt::format("no file matches '{}'", pattern));
    }
  }

  // Takes the logs in it by name, then those of the folders below.
  void take_folder(const std::string& path) {
    Directory folder(path);
    if (!folder) {
      problems.push_back(why_not("cannot read folder", path));
      return;
    }
    std::vector<std::string> names;
    while (const char* const name = folder.next()) {
      if (name[0] != '.') {  // snapshots of a file system are old copies
        names.push_back(path + (path.ends_with('/') ? "" : "/") + name);
      }
    }
    std::sort(names.begin(), names.end());
    std::vector<std::string> below;
    for (const std::string& inside : names) {
      struct stat status {};
      struct stat link {};
      const bool is_link = ::lstat(inside.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
      const bool is_there = ::stat(inside.c_str(), &status) == 0;
      if (is_there && S_ISDIR(status.st_mode) && is_link) {  // it might lead back, or anywhere
        notes.push_back(fmt::format(
            "'{}' is not read: a link to a folder is followed where it is named itself", inside));
      } else if (is_there && S_ISDIR(status.st_mode)) {
        below.push_back(inside);
      } else if (!is_there || S_ISREG(status.st_mode)) {
        take_from_folder(inside, status);
      }
    }
    for (const std::string& inside : below) {
      take_folder(inside);
    }
  }

  // A log that cannot be looked at is added, too: opening it says why.
  void take_from_folder(const std::string& path, const struct stat& status) {
    const std::string rotated_log = std::string(kLogSuffix) + kRotatedSuffix;
    if (path.ends_with(kLogSuffix)) {
      add(path, true, status, false);
    } else if (path.ends_with(rotated_log)) {
      // Alone while its server has not begun the next one.
      const std::string base =
          path.substr(0, path.size() - std::string_view(kRotatedSuffix).size());
      if (::access(base.c_str(), F_OK) != 0) {
        add(path, false, status, false);
      }
    }
  }

  void add(const std::string& path, bool with_rotated, const struct stat& status, bool is_named) {
    ++found_;
    const auto [at, is_new] = known_.try_emplace({status.st_dev, status.st_ino}, logs.size());
    if (is_new || status.st_ino == 0) {
      logs.push_back({path, with_rotated, {}});
      return;
    }
    LogPath& other = logs[at->second];
    other.with_rotated = other.with_rotated || with_rotated;
    if (is_named) {
      notes.push_back(fmt::format("'{}' is the same file as '{}': read once", path, other.path));
    }
  }

  std::map<std::pair<dev_t, ino_t>, std::size_t> known_;
  std::size_t found_ = 0;  // logs, those that are meant twice, too
};

// Returns the logs to read if the user named none.
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
  FILETIMER_TRY(path);
  logs.push_back({*path, true, {}});
  if (!folder.was_named()) {
    logs[0].why = fmt::format(" (the default place: no FILE, no --dir, no ${})", kDirVariable);
  } else if (folder.source == FolderSource::kEnvironment) {
    logs[0].why = fmt::format(" (from ${})", kDirVariable);
  }
  return logs;
}

// --- opening them ---

UniqueFd open_to_read(const std::string& path) {
  return UniqueFd(path == kStandardInput
                      ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                      : retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
}

bool is_same_file(const UniqueFd& a, const UniqueFd& b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a.get(), &one) == 0 && ::fstat(b.get(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Adds the log, or a problem.
void open_log(const LogPath& path, OpenedLogs& opened) {
  std::vector<UniqueFd> files;
  UniqueFd current = open_to_read(path.path);
  const int error = current ? 0 : errno;
  if (path.with_rotated && (current || error == ENOENT)) {
    // Opened second: if the server rotates between the two, both are the same file.
    const std::string rotated_path = path.path + kRotatedSuffix;
    UniqueFd rotated = open_to_read(rotated_path);
    if (!rotated && errno != ENOENT) {
      opened.problems.push_back(why_not("cannot open", rotated_path));
    } else if (rotated && !(current && is_same_file(current, rotated))) {
      files.push_back(std::move(rotated));
    }
  }
  if (current) {
    files.push_back(std::move(current));
  }
  if (files.empty()) {
    errno = error;
    opened.problems.push_back(why_not("cannot open", path.path) + path.why);
  } else {
    opened.logs.emplace_back(path.path, std::move(files));
  }
}

// Each log holds two, and a shell may allow no more than 1,024.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// --- reading them as one ---

// The blocks of all logs together take this much memory, unless records are longer than a block.
constexpr std::size_t kAllBlocksBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastBlockBytes = std::size_t{4} << 10;
constexpr std::size_t kMostBlockBytes = std::size_t{64} << 10;

// The next line of a log, by its place among the next lines of all logs: the latest time in its log
// so far, then the monotonic time. Records behind a clock that was set back, or without a time,
// stay where they are in their log.
using NextLine = std::tuple<Integer, Integer, std::size_t, std::string_view>;

}  // namespace

OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files) {
  Finder found;
  std::for_each(files.begin(), files.end(), [&](const auto& word) { found.take_word(word); });
  OpenedLogs opened{{}, std::move(found.notes), std::move(found.problems)};
  if (files.empty()) {
    auto own = own_logs(resolve_run_folder(dir));
    if (!own) {
      opened.problems.push_back(std::move(own.error().message));
      return opened;
    }
    found.logs = std::move(*own);
  }
  allow_many_descriptors();
  for (const LogPath& path : found.logs) {
    open_log(path, opened);
  }
  return opened;
}

OpenedLogs open_own_logs(const RunFolder& folder) {
  OpenedLogs opened;
  for (const LogPath& path : own_logs(folder).value_or(std::vector<LogPath>{})) {
    struct stat st {};
    const std::string rotated = path.path + kRotatedSuffix;
    const bool is_there = ::stat(path.path.c_str(), &st) == 0;
    if (is_there ? S_ISREG(st.st_mode) : errno != ENOENT || ::stat(rotated.c_str(), &st) == 0) {
      open_log(path, opened);
    }
  }
  return opened;
}

std::vector<std::string> problems_of(const std::vector<LogReader>& logs) {
  std::vector<std::string> problems;
  for (const LogReader& log : logs) {
    if (!log.problem().empty()) {
      problems.push_back(log.problem());
    }
  }
  return problems;
}

std::string skipped_text(const std::vector<LogReader>& logs) {
  std::size_t skipped = 0;
  for (const LogReader& log : logs) {
    skipped += log.skipped();
  }
  if (skipped == 0) {
    return {};
  }
  return fmt::format("skipped {} in {}",
                     skipped == 1 ? std::string("1 line that is no record")
                                  : fmt::format("{} lines that are no records", skipped),
                     names_of(logs));
}

std::string names_of(const std::vector<LogReader>& logs) {
  if (logs.size() < 2) {
    return logs.empty() ? std::string("no log") : fmt::format("'{}'", logs[0].path());
  }
  return fmt::format("'{}' and {} more file{}", logs[0].path(), logs.size() - 1,
                     logs.size() == 2 ? "" : "s");
}

void read_merged(std::vector<LogReader>& logs, const std::function<bool(const Record&)>& sink) {
  if (logs.size() == 1) {
    while (const Record* const record = logs[0].next()) {
      if (!sink(*record)) {
        return;
      }
    }
    return;
  }
  std::vector<Integer> latest_us(logs.size());
  std::priority_queue<NextLine, std::vector<NextLine>, std::greater<>> next;
  const auto queue = [&](std::size_t log) {
    if (const Record* const record = logs[log].next()) {
      latest_us[log] = std::max(latest_us[log], record->time_us);
      next.emplace(latest_us[log], record->mono_ns, log, record->line);
    }
  };
  for (std::size_t log = 0; log < logs.size(); ++log) {
    logs[log].set_block_bytes(
        std::clamp(kAllBlocksBytes / logs.size(), kLeastBlockBytes, kMostBlockBytes));
    queue(log);
  }
  while (!next.empty()) {
    const auto [latest, mono_ns, log, line] = next.top();
    next.pop();
    // Parsed again: the records of other logs have used the parser since. Whole records of all logs
    // would take more memory than that takes time.
    const auto record = parse_record(line);
    if (record && !sink(*record)) {
      return;
    }
    queue(log);
  }
}

}  // namespace filetimer::cli
