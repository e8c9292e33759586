// SPDX-License-Identifier: MIT
#include "common/run_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/clock.hpp"

namespace filetimer {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string{} : std::string(value);
}

// Returns whether the folder exists and is this user's. A scheduler may pass on an XDG_RUNTIME_DIR
// of another host, or of a session that has ended.
bool is_our_folder(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid();
}

bool others_may_write(const struct stat& st) {
  return (st.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

// Returns the user id that this process sees as the owner of root's folders, such as /proc: 0, or
// the overflow id 65534 in a user namespace that maps no id to root, as in a container of
// Apptainer.
uid_t roots_user() {
  struct stat st {};
  return ::stat("/proc", &st) == 0 ? st.st_uid : 0;
}

// Returns whether this process trusts what belongs to the user.
bool is_trusted(uid_t user) {
  return user == 0 || user == ::geteuid() || user == roots_user();
}

Status check_parent(const std::string& folder) {
  struct stat st {};
  if (::stat(folder.c_str(), &st) != 0) {
    return system_error(fmt::format("cannot look at '{}'", folder));
  }
  if (!S_ISDIR(st.st_mode)) {
    return failure(fmt::format("'{}' is not a folder", folder));
  }
  if (!is_trusted(st.st_uid)) {
    return failure(
        fmt::format("'{}' belongs to user {}, who could replace its contents: expected a "
                    "folder of root or of user {}",
                    folder, st.st_uid, ::geteuid()));
  }
  if (others_may_write(st) && (st.st_mode & S_ISVTX) == 0) {
    return failure(
        fmt::format("others may write to '{}' (mode {:04o}) and could replace "
                    "its contents: expected mode 0755 or stricter, or the sticky bit",
                    folder, st.st_mode & 07777));
  }
  return {};
}

// Checks every folder through which the kernel goes from `folder`, which was checked: a symlink in
// a folder of this user may lead to one in a folder of another. The owner of a symlink in a sticky
// folder can replace it.
Status check_way(std::filesystem::path folder, const std::filesystem::path& way) {
  for (const auto& part : way) {
    const std::filesystem::path next = folder / part;
    FILETIMER_TRY(check_parent(next.string()));
    if (const std::string target = link_target(next.string()); !target.empty()) {
      struct stat link {};
      struct stat in {};
      if (::lstat(next.c_str(), &link) != 0 || ::stat(folder.c_str(), &in) != 0 ||
          (others_may_write(in) && !is_trusted(link.st_uid))) {
        return failure(fmt::format("'{}' is a symlink of user {}, who could replace it",
                                   next.string(), link.st_uid));
      }
      FILETIMER_TRY(check_way(folder, target));
    }
    folder = next;
  }
  return {};
}

// Returns a short and stable id, which distinguishes the logs of two hosts of one name in a shared
// home.
std::string machine_id() {
  for (const char* path : {"/etc/machine-id", kBootIdPath}) {
    std::ifstream file(path);
    std::string id;
    if (file >> id && id.size() >= 8) {
      return id.substr(0, 8);
    }
  }
  return "unknown";
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code ec;
  const auto absolute = std::filesystem::absolute(path, ec).lexically_normal();
  std::string text = ec ? path : absolute.string();
  while (text.size() > 1 && text.back() == '/') {
    text.pop_back();
  }
  return text;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? std::string(name) : std::string("unknown");
}

RunFolder resolve_run_folder(const std::string& dir) {
  if (!dir.empty()) {
    return {absolute_path(dir), true};
  }
  if (const std::string named = environment(kDirVariable); !named.empty()) {
    return {absolute_path(named), true};
  }
  if (const std::string runtime = environment("XDG_RUNTIME_DIR");
      !runtime.empty() && runtime[0] == '/' && is_our_folder(runtime)) {
    return {absolute_path(runtime) + "/filetimer", false};
  }
  return {fmt::format("/dev/shm/filetimer-{}", ::geteuid()), false};
}

std::string resolve_pipe(const std::string& dir, const std::string& fifo) {
  if (!fifo.empty()) {
    return absolute_path(fifo);
  }
  const RunFolder folder = resolve_run_folder(dir);
  if (!folder.was_named) {
    if (const std::string pipe = environment(kTorchPipeVariable); !pipe.empty()) {
      return absolute_path(pipe);
    }
  }
  return folder.path(kPipeName);
}

Result<std::string> default_log_path(const RunFolder& folder) {
  if (folder.was_named) {
    return folder.path(kLogName);
  }
  std::string state = environment("XDG_STATE_HOME");
  if (state.empty() || state[0] != '/') {
    const std::string home = environment("HOME");
    if (home.empty()) {
      return failure("no place for the log: expected --log, --dir, $XDG_STATE_HOME or $HOME");
    }
    state = home + "/.local/state";
  }
  return fmt::format("{}/filetimer/{}-{}.jsonl", state, host_name(), machine_id());
}

Status check_parents(const std::string& path) {
  return check_way({}, std::filesystem::path(absolute_path(path)).parent_path());
}

Result<UniqueFd> create_run_folder(const std::string& dir) {
  const std::string path = absolute_path(dir);
  if (!path.starts_with('/')) {
    return system_error(fmt::format("cannot find the working directory for '{}'", path), ENOENT);
  }
  if (path.size() >= PATH_MAX) {  // before any of its parents is made
    return system_error(fmt::format("cannot make the folder '{}'", path), ENAMETOOLONG);
  }
  std::error_code ec;
  const auto parent = std::filesystem::path(path).parent_path();
  // The root is its own parent, and may be one that cannot be looked at, as in a sandbox.
  if (parent != path && !std::filesystem::exists(parent, ec)) {
    // Parents are private from the start, independent of the umask, and checked.
    FILETIMER_TRY(create_run_folder(parent.string()));
  } else {
    FILETIMER_TRY(check_parents(path));
  }
  if (::mkdir(path.c_str(), 0700) == 0) {
    (void)!::chmod(path.c_str(), 0700);  // the umask may forbid its own user the search, as 0177
  } else if (errno != EEXIST) {
    return system_error(fmt::format("cannot make the folder '{}'", path));
  }
  // O_NOFOLLOW, then fstat(), so that the folder that is checked is the open one.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    struct stat st {};
    if (errno == ENOTDIR && ::lstat(path.c_str(), &st) == 0) {
      return failure(fmt::format("'{}' is a {}: expected a folder, or nothing", path,
                                 S_ISLNK(st.st_mode) ? "symlink" : "file"));
    }
    return system_error(fmt::format("cannot open the folder '{}'", path));
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) {
    return system_error(fmt::format("cannot look at '{}'", path));
  }
  if (st.st_uid != ::geteuid()) {
    return failure(fmt::format("'{}' belongs to user {}: expected a folder of user {}", path,
                               st.st_uid, ::geteuid()));
  }
  if (others_may_write(st)) {
    return failure(fmt::format("others may write to '{}' (mode {:04o}): expected mode 0700", path,
                               st.st_mode & 07777));
  }
  return fd;
}

Result<ControlAddress> ControlAddress::in(const std::string& dir, std::string_view name) {
  ControlAddress control;
  std::string path = fmt::format("{}/{}", dir, name);
  if (path.size() >= sizeof control.address_.sun_path) {
    control.folder_.reset(::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!control.folder_) {
      return system_error(fmt::format("cannot open '{}'", dir));
    }
    path = fmt::format("/proc/self/fd/{}/{}", control.folder_.get(), name);
  }
  control.address_.sun_family = AF_UNIX;
  std::memcpy(control.address_.sun_path, path.c_str(), path.size() + 1);
  return control;
}

}  // namespace filetimer
