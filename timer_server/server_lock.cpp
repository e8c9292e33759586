// SPDX-License-Identifier: MIT
#include "timer_server/server_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>  // mkdtemp
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/directory.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"

namespace filetimer {
namespace {

// The most fresh folders of killed servers that one start removes.
constexpr std::size_t kMaxRemovedFolders = 64;

// For so long a fresh folder without a server is kept: its maker may be about to lock it, and a
// COMMAND whose server was killed may be starting.
constexpr std::chrono::hours kAbandonedAge{1};

// Returns whether the name is one of make_fresh_folder(): "run-4711-a1B2c3", with a dot before it
// until the folder is locked.
bool is_fresh_name(std::string_view name) {
  name.remove_prefix(name.starts_with('.') ? 1 : 0);
  if (!name.starts_with(kFreshFolderPrefix)) {
    return false;
  }
  name.remove_prefix(std::string_view(kFreshFolderPrefix).size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  constexpr std::size_t kSuffix = 6;  // of mkdtemp()
  return digits > 0 && name.size() == digits + 1 + kSuffix && name[digits] == '-' &&
         std::ranges::all_of(name.substr(digits + 1),
                             [](unsigned char c) { return std::isalnum(c); });
}

// Returns whether the folder has a log: then it was named, and is not a fresh one.
bool has_log(const std::filesystem::path& folder) {
  std::error_code ec;
  return std::filesystem::symlink_status(folder / kLogName, ec).type() !=
         std::filesystem::file_type::not_found;
}

// Returns whether it is a folder of this user whose entries have not changed for kAbandonedAge.
bool is_old_folder(const std::filesystem::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() &&
         st.st_mtime < std::time(nullptr) - std::chrono::seconds(kAbandonedAge).count();
}

// Removes fresh folders that servers left when they were killed. A fresh folder gets its final name
// after it is locked, so one without a lock has no server. The scopes that are kept in it are lost:
// no server would have adopted them, since no two servers make the same folder.
void remove_abandoned_folders(const std::string& parent) {
  std::size_t removed = 0;
  Directory folders(parent);
  while (const char* const entry = removed < kMaxRemovedFolders ? folders.next() : nullptr) {
    const std::string_view name = entry;
    const std::filesystem::path folder = std::filesystem::path(parent) / name;
    if (!is_fresh_name(name) || !is_old_folder(folder) || has_log(folder)) {
      continue;
    }
    // Held while the folder is removed, so that no server can start in it.
    if (const auto lock = take_server_lock((folder / kBoardName).string())) {
      std::error_code failed;
      std::filesystem::remove_all(folder, failed);
      ++removed;
    }
  }
}

// Makes a folder by a pattern of mkdtemp().
Result<FreshFolder> make_locked_folder(std::string path) {
  if (::mkdtemp(path.data()) == nullptr) {
    return system_error(fmt::format("cannot make the folder '{}'", path));
  }
  auto lock = take_server_lock(fmt::format("{}/{}", path, kBoardName));
  if (!lock) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    return tl::unexpected<Error>(std::move(lock.error()));
  }
  return FreshFolder{std::move(path), std::move(*lock)};
}

tl::unexpected<Error> held(const std::string& path, pid_t holder) {
  return failure(holder > 0
                     ? fmt::format("'{}' is held by the timer_server with pid {}", path, holder)
                     : fmt::format("'{}' is held by another timer_server", path),
                 EBUSY);
}

}  // namespace

Result<FileLock> take_server_lock(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat st {};
  if (!file || ::fstat(file.get(), &st) != 0) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  if (!S_ISREG(st.st_mode)) {
    return failure(fmt::format("'{}' is no regular file: expected one, or nothing", path));
  }
  if (const auto lock = lock_state(file.get()); lock && lock->is_held) {
    return held(path, lock->holder);
  }
  auto taken = FileLock::take(std::move(file), path);
  return taken || taken.error().errno_value != EBUSY ? std::move(taken) : held(path, 0);
}

Result<FreshFolder> make_private_folder() {
  const char* const named = std::getenv("TMPDIR");
  const std::string path =
      fmt::format("{}/filetimer-XXXXXX", named == nullptr || named[0] != '/' ? "/tmp" : named);
  if (Status checked = check_parents(path); !checked) {
    return tl::unexpected<Error>(std::move(checked.error()));
  }
  return make_locked_folder(path);
}

Result<FreshFolder> make_fresh_folder(const std::string& parent) {
  if (auto made = create_run_folder(parent); !made) {
    return tl::unexpected<Error>(std::move(made.error()));
  }
  remove_abandoned_folders(parent);
  auto made =
      make_locked_folder(fmt::format("{}/.{}{}-XXXXXX", parent, kFreshFolderPrefix, ::getpid()));
  if (!made) {
    return made;
  }
  std::string path = fmt::format("{}/{}", parent, made->path.substr(parent.size() + 2));  // no dot
  if (::rename(made->path.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::error_code ignored;
    std::filesystem::remove_all(made->path, ignored);
    return system_error(fmt::format("cannot rename '{}'", made->path), reason);
  }
  made->path = std::move(path);
  return made;
}

}  // namespace filetimer
