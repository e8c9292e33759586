// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_paths.hpp"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "common/directory.hpp"
#include "common/result.hpp"
#include "timer_client/cli/log/log_file.hpp"

namespace filetimer::cli {
namespace {

constexpr std::string_view kLogSuffix = ".jsonl";
constexpr std::string_view kPatternLetters = "*?[";
// A folder of results may hold anything: neither a deep tree nor a huge one keeps us for long.
constexpr int kFolderDepth = 6;
constexpr std::size_t kMostLogs = 8192;

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

class Finder {
 public:
  void take_word(const std::string& word) {
    struct stat status {};
    if (::stat(word.c_str(), &status) == 0) {
      add_named(word, status);
    } else if (word.find_first_of(kPatternLetters) != word.npos) {
      take_pattern(word);
    } else {
      found_.problems.push_back(
          system_error(fmt::format("cannot open '{}'", word)).value().message);
    }
  }

  LogPaths take() {
    if (linked_folders_ > 0) {
      found_.notes.push_back(fmt::format(
          "'{}'{}: a link to a folder is followed where it is named itself", first_linked_folder_,
          linked_folders_ == 1 ? std::string(" is not read")
                               : fmt::format(" and {} more are not read", linked_folders_ - 1)));
    }
    return std::move(found_);
  }

 private:
  void add_named(const std::string& path, const struct stat& status) {
    if (!S_ISDIR(status.st_mode)) {
      add(path, false, status, true);
      return;
    }
    const std::size_t logs = found_.logs.size() + repeated_;
    const std::size_t problems = found_.problems.size();
    take_folder(path, kFolderDepth);
    if (logs == found_.logs.size() + repeated_ && problems == found_.problems.size()) {
      found_.problems.push_back(fmt::format("no log (*{}) in folder '{}'", kLogSuffix, path));
    }
  }

  void take_pattern(const std::string& pattern) {
    glob_t matches{};
    const int result = ::glob(pattern.c_str(), 0, nullptr, &matches);
    const std::unique_ptr<glob_t, void (*)(glob_t*)> freed(&matches, ::globfree);
    if (result != 0) {
      found_.problems.push_back(fmt::format(
          "{} '{}'", result == GLOB_NOMATCH ? "no file matches" : "cannot expand", pattern));
      return;
    }
    bool any = false;
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
      const std::string path = matches.gl_pathv[i];
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0) {
        any = true;  // a link to nowhere stands for a log that should be there
        found_.problems.push_back(
            system_error(fmt::format("cannot open '{}'", path)).value().message);
      } else if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
        // A run folder's pipe would be waited for, its other files are no logs.
        any = true;
        add_named(path, status);
      }
    }
    if (!any) {
      found_.problems.push_back(fmt::format("no file matches '{}'", pattern));
    }
  }

  // The logs in it by name, then the folders below.
  void take_folder(const std::string& path, int depth) {
    Directory folder(path);
    if (!folder) {
      found_.problems.push_back(
          system_error(fmt::format("cannot read folder '{}'", path)).value().message);
      return;
    }
    std::vector<std::string> names;
    while (const char* const name = folder.next()) {
      if (name[0] != '.') {  // a file system's snapshots are old copies
        names.emplace_back(name);
      }
    }
    std::sort(names.begin(), names.end());
    std::vector<std::string> below;
    for (const std::string& name : names) {
      const std::string inside = path + (path.ends_with('/') ? "" : "/") + name;
      struct stat status {};
      if (::lstat(inside.c_str(), &status) != 0) {
        if (errno == ENOENT) {
          continue;  // gone meanwhile
        }
        // It may be listed and not entered: the same holds of all that is in it.
        found_.problems.push_back(
            system_error(fmt::format("cannot look into folder '{}'", path)).value().message);
        return;
      }
      if (S_ISDIR(status.st_mode)) {
        below.push_back(inside);
      } else if (S_ISLNK(status.st_mode) && is_folder(inside)) {
        // It might lead back, or anywhere.
        if (linked_folders_++ == 0) {
          first_linked_folder_ = inside;
        }
      } else {
        add_from_folder(inside);
      }
    }
    for (const std::string& inside : below) {
      if (depth == 0) {
        found_.problems.push_back(
            fmt::format("folder '{}' is not read: {} levels down", inside, kFolderDepth + 1));
      } else {
        take_folder(inside, depth - 1);
      }
    }
  }

  void add_from_folder(const std::string& path) {
    struct stat status {};
    const std::string_view name = path;
    if (name.ends_with(kLogSuffix)) {
      if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) {
        add(path, true, status, false);
      }
      return;
    }
    const std::string_view rotated = kRotatedSuffix;
    if (!name.ends_with(std::string(kLogSuffix) + kRotatedSuffix)) {
      return;
    }
    // Alone while its server has not begun the next one.
    const std::string base(name.substr(0, name.size() - rotated.size()));
    if (::stat(base.c_str(), &status) != 0 && ::stat(path.c_str(), &status) == 0 &&
        S_ISREG(status.st_mode)) {
      add(path, false, status, false);
    }
  }

  void add(const std::string& path, bool with_rotated, const struct stat& status, bool is_named) {
    // One that cannot be looked at is added too: opening it says why.
    const auto [at, is_new] =
        known_.try_emplace({status.st_dev, status.st_ino}, found_.logs.size());
    if (!is_new && status.st_ino != 0) {
      LogPath& other = found_.logs[at->second];
      other.with_rotated = other.with_rotated || with_rotated;
      ++repeated_;
      if (is_named) {
        found_.notes.push_back(
            fmt::format("'{}' is the same file as '{}': read once", path, other.path));
      }
      return;
    }
    if (found_.logs.size() == kMostLogs) {
      if (!std::exchange(is_full_, true)) {
        found_.problems.push_back(
            fmt::format("more than {} logs: '{}' and what follows is not read", kMostLogs, path));
      }
      return;
    }
    found_.logs.push_back({path, with_rotated, {}});
  }

  LogPaths found_;
  std::map<std::pair<dev_t, ino_t>, std::size_t> known_;
  std::size_t repeated_ = 0;
  std::size_t linked_folders_ = 0;  // found in folders, and left
  std::string first_linked_folder_;
  bool is_full_ = false;
};

}  // namespace

LogPaths find_logs(const std::vector<std::string>& words) {
  Finder finder;
  for (const std::string& word : words) {
    finder.take_word(word);
  }
  return finder.take();
}

}  // namespace filetimer::cli
