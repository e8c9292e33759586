// SPDX-License-Identifier: MIT
#include "timer_server/runtime_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <stdlib.h>  // mkdtemp
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/control.hpp"
#include "common/directory.hpp"
#include "common/due.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// Returns the mode of the file at `path`; 0: there is none. Does not follow a symlink.
mode_t mode_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode : 0;
}

void remove_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Makes a symlink, through which clients that know only the folder find a pipe or log elsewhere.
Status point_to(const std::string& target, const std::string& link) {
  if (const mode_t mode = mode_of(link); mode != 0) {
    std::error_code ec;
    if (std::filesystem::read_symlink(link, ec) == target) {
      return {};
    }
    if (!S_ISLNK(mode) && !S_ISFIFO(mode)) {
      return failure(fmt::format("'{}' is in the way: expected a symlink, or nothing", link));
    }
    ::unlink(link.c_str());
  }
  if (::symlink(target.c_str(), link.c_str()) != 0) {
    return system_error(fmt::format("cannot make '{}'", link));
  }
  return {};
}

// Returns the kind of network file system that `path` is on, or nothing if it is on none that is
// known.
std::string_view network_file_system(const std::string& path) {
  struct Kind {
    std::uint32_t magic;  // f_type of statfs(2)
    std::string_view name;
  };
  constexpr std::array kKinds{
      Kind{0x6969, "NFS"},        Kind{0xFF534D42, "SMB"},  Kind{0xFE534D42, "SMB"},
      Kind{0x517B, "SMB"},        Kind{0x00C36400, "Ceph"}, Kind{0x0BD00BD0, "Lustre"},
      Kind{0x47504653, "GPFS"},   Kind{0x5346414F, "AFS"},  Kind{0x6B414653, "AFS"},
      Kind{0x19830326, "BeeGFS"}, Kind{0x01021997, "9P"}};
  struct statfs is_on {};
  if (::statfs(path.c_str(), &is_on) != 0) {
    return {};
  }
  const auto* const kind =
      std::ranges::find(kKinds, static_cast<std::uint32_t>(is_on.f_type), &Kind::magic);
  return kind == kKinds.end() ? std::string_view{} : kind->name;
}

// If a server is killed while it starts a child, the child holds the server's descriptors until it
// runs another program. For this long the start waits until the pipe has no reader.
constexpr Duration kReaderPatience = std::chrono::seconds{1};
constexpr Duration kReaderLook = std::chrono::milliseconds{5};

Result<RequestPipe> open_pipe(const std::string& path) {
  const Instant until = Instant::now() + kReaderPatience;
  for (;;) {
    auto pipe = RequestPipe::open(path);
    if (pipe || pipe.error().errno_value != EBUSY || Instant::now() >= until) {
      return pipe;
    }
    std::this_thread::sleep_for(kReaderLook);
  }
}

// The most fresh folders of killed servers that one start removes.
constexpr std::size_t kMaxRemovedFolders = 64;

// For so long a fresh folder without a server is kept: its maker may be about to lock it, and a
// COMMAND whose server was killed may be starting.
constexpr std::chrono::hours kAbandonedAge{1};

// Returns whether the name is one of make_fresh_folder(): "run-4711-a1B2c3", with a dot before it
// until the folder is locked.
bool is_fresh_name(const char* name) {
  const std::string pattern = fmt::format("{}[0-9]*-??????", kFreshFolderPrefix);
  return ::fnmatch(pattern.c_str(), name + (name[0] == '.' ? 1 : 0), 0) == 0;
}

// Returns whether it is a folder of this user whose entries have not changed for kAbandonedAge.
bool is_old_folder(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() &&
         st.st_mtime < std::time(nullptr) - std::chrono::seconds(kAbandonedAge).count();
}

tl::unexpected<Error> held(const std::string& path, pid_t holder) {
  return failure(holder > 0
                     ? fmt::format("'{}' is held by the timer_server with pid {}", path, holder)
                     : fmt::format("'{}' is held by another timer_server", path),
                 EBUSY);
}

// Locks the file, and makes it if it is missing: the kernel frees the lock when the process ends,
// and names the process that holds it. Fails with EBUSY if another server holds the lock.
// Afterwards no code in this process may open `path`: closing any descriptor of the file would drop
// the lock.
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

// Removes fresh folders that servers left when they were killed. A fresh folder gets its final name
// after it is locked, so one without a lock has no server. The scopes that are kept in it are lost:
// no server would have adopted them, since no two servers make the same folder.
void remove_abandoned_folders(const std::string& parent) {
  std::size_t removed = 0;
  Directory folders(parent);
  while (const char* const name = removed < kMaxRemovedFolders ? folders.next() : nullptr) {
    const RunFolder folder{parent + "/" + name};
    // A folder with a log was named, and is not a fresh one.
    if (!is_fresh_name(name) || !is_old_folder(folder.dir) || mode_of(folder.path(kLogName)) != 0) {
      continue;
    }
    // Held while the folder is removed, so that no server can start in it.
    if (const auto lock = take_server_lock(folder.path(kBoardName))) {
      remove_folder(folder.dir);
      ++removed;
    }
  }
}

struct FreshFolder {
  std::string path;
  FileLock lock;
};

Result<FreshFolder> make_locked_folder(std::string path) {
  if (::mkdtemp(path.data()) == nullptr) {
    return system_error(fmt::format("cannot make the folder '{}'", path));
  }
  auto lock = take_server_lock(fmt::format("{}/{}", path, kBoardName));
  if (!lock) {
    remove_folder(path);
  }
  FILETIMER_TRY(lock);
  return FreshFolder{std::move(path), std::move(*lock)};
}

// For a host on which the default folder cannot be used, because another user has taken its name:
// in $TMPDIR or /tmp, where no server removes the folder of a server that was killed.
Result<FreshFolder> make_private_folder() {
  const char* const named = std::getenv("TMPDIR");
  const std::string path =
      fmt::format("{}/filetimer-XXXXXX", named == nullptr || named[0] != '/' ? "/tmp" : named);
  FILETIMER_TRY(check_parents(path));
  return make_locked_folder(path);
}

// For one COMMAND, so that two jobs of one user never share a folder. It is locked before it gets
// its final name, so a folder with such a name and without a lock has no server.
Result<FreshFolder> make_fresh_folder(const std::string& parent) {
  FILETIMER_TRY(create_run_folder(parent));
  remove_abandoned_folders(parent);
  auto made =
      make_locked_folder(fmt::format("{}/.{}{}-XXXXXX", parent, kFreshFolderPrefix, ::getpid()));
  if (!made) {
    return made;
  }
  std::string path = fmt::format("{}/{}", parent, made->path.substr(parent.size() + 2));  // no dot
  if (::rename(made->path.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    remove_folder(made->path);
    return system_error(fmt::format("cannot rename '{}'", made->path), reason);
  }
  made->path = std::move(path);
  return made;
}

// Returns the path that --log or the directory says. Makes the folder of a log for which neither
// names one.
Result<std::string> log_path_of(const Settings& settings, const RunFolder& folder) {
  if (!settings.log.empty()) {
    return settings.log;
  }
  auto path = default_log_path(folder);
  if (path && !folder.was_named()) {
    const std::string parent = std::filesystem::path(*path).parent_path().string();
    FILETIMER_TRY(create_run_folder(parent));
  }
  return path;
}

}  // namespace

Result<UniqueFd> make_control_socket(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kControlName);
  struct stat st {};
  if (::lstat(path.c_str(), &st) == 0) {
    if (!S_ISSOCK(st.st_mode)) {
      return failure(fmt::format("'{}' is in the way: expected a socket, or nothing", path));
    }
    ::unlink(path.c_str());
  }
  const auto address = ControlAddress::in(dir);
  FILETIMER_TRY(address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // The file gets the mode of the descriptor. The kernel may let fewer connections wait.
  if (!socket || ::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), address->get(), ControlAddress::size()) != 0 ||
      ::listen(socket.get(), static_cast<int>(kMaxWaitingClients)) != 0) {
    return system_error(fmt::format("cannot make the socket '{}'", path));
  }
  return socket;
}

tl::expected<RuntimeDirectory, StartFailure> RuntimeDirectory::take(const Settings& settings) {
  RunFolder folder = resolve_run_folder(settings.dir);
  const bool is_fresh = !folder.was_named() && !settings.command.empty();
  const auto log = log_path_of(settings, folder);
  FILETIMER_TRY(log);
  std::optional<FileLock> held;
  std::string no_default;
  if (is_fresh) {
    auto made = make_fresh_folder(folder.dir);
    if (!made) {
      no_default = made.error().message;
      made = make_private_folder();
    }
    if (!made) {
      return failure(fmt::format("{}; {}", no_default, made.error().message));
    }
    folder.dir = made->path;
    held = std::move(made->lock);
  } else {
    FILETIMER_TRY(create_run_folder(folder.dir));
    auto lock = take_server_lock(folder.path(kBoardName));
    FILETIMER_TRY(lock);
    held = std::move(*lock);
  }
  RuntimeDirectory directory(std::move(*held));
  directory.folder_ = folder;
  directory.pipe_ = settings.fifo.empty() ? folder.path(kPipeName) : absolute_path(settings.fifo);
  directory.log_ = absolute_path(*log);
  directory.is_fresh_ = is_fresh;
  directory.no_default_ = std::move(no_default);
  directory.terms_ = {.max_timeout = settings.max_timeout.value_or(kForever),
                      .default_timeout = settings.default_timeout.value_or(Duration::zero()),
                      .warn_at = settings.warn_at ? warn_at_word(*settings.warn_at) : 0};
  return directory;
}

tl::expected<std::shared_ptr<RecordLog>, StartFailure> RuntimeDirectory::open(
    const Settings& settings, UniqueFd passed) {
  // The status page first, because clients that open the pipe look at it.
  auto board = BoardFile::open(folder_.path(kBoardName), terms_);
  FILETIMER_TRY(board);
  auto pages = PageFolder::make(path());
  FILETIMER_TRY(pages);
  FILETIMER_TRY(make_control());
  const std::string own = folder_.path(kPipeName);
  if (pipe_ == own && S_ISLNK(mode_of(own))) {
    ::unlink(own.c_str());  // left by a server whose pipe was elsewhere
  }
  has_passed_pipe_ = static_cast<bool>(passed);
  auto pipe = passed ? RequestPipe::take(pipe_, std::move(passed)) : open_pipe(pipe_);
  if (!pipe) {
    StartFailure failure(pipe.error());
    if (has_passed_pipe_) {
      failure.status = exit_status::kUsage;  // a restart with the same arguments fails again
    }
    return tl::unexpected(std::move(failure));
  }
  opened_.emplace(Opened{std::move(*pipe), {}, std::move(*pages)});
  opened_->boards.push_back(std::move(*board));
  if (pipe_ != own) {
    FILETIMER_TRY(point_to(pipe_, own));
  }
  RecordLog::Settings log_settings;
  log_settings.path = log_;
  log_settings.max_bytes = settings.log_max_bytes;
  auto log = RecordLog::open(std::move(log_settings));
  FILETIMER_TRY(log);
  FILETIMER_TRY(point_to_log());
  return std::move(*log);
}

// The link stays when the server ends, because the log is most often read afterwards.
Status RuntimeDirectory::point_to_log() const {
  const std::string link = folder_.path(kLogLinkName);
  // Every process finds the same regular file; /dev/stderr differs for each.
  if (log_ != folder_.path(kLogName) && S_ISREG(mode_of(log_))) {
    return point_to(log_, link);
  }
  if (S_ISLNK(mode_of(link))) {
    ::unlink(link.c_str());  // left by a server whose log was elsewhere
  }
  return {};
}

void RuntimeDirectory::warn_about_place() const {
  if (!no_default_.empty()) {
    messages::warning("{}; the directory is '{}'", no_default_, path());
  }
  if (const std::string_view kind = network_file_system(path()); !kind.empty()) {
    messages::warning(
        "'{}' is on a network file system ({}): no deadline is judged while it hangs. Choose a "
        "directory in memory with --dir",
        path(), kind);
  }
}

void RuntimeDirectory::serve() {
  opened_->boards.back().serve();
}

void RuntimeDirectory::announce(Announcement announcement) {
  announced_ = announcement;
  if (!is_serving_) {
    return;
  }
  for (BoardFile& board : opened_->boards) {
    board.announce(announcement);
  }
}

void RuntimeDirectory::stop_serving() {
  is_serving_ = false;
  for (BoardFile& board : opened_->boards) {
    board.stop();
  }
}

bool RuntimeDirectory::restore() {
  Result<bool> restored = restore_entries();
  report(folder_trouble_, restored ? std::string{} : restored.error().message);
  if (!restored || !*restored) {
    return false;
  }
  messages::warning("an entry of '{}' was removed or cut short: made again", path());
  return true;
}

Result<bool> RuntimeDirectory::restore_entries() {
  const bool has_board = identity_of(folder_.path(kBoardName)) == lock_.identity();
  BoardFile& board = opened_->boards.back();
  const bool has_pages = std::ranges::all_of(
      std::array{kOwnersName, kStacksName, kServerPagesName},
      [this](std::string_view name) { return S_ISDIR(mode_of(opened_->pages.page_path(name))); });
  if (has_board && board.is_whole() && has_pages &&
      identity_of(folder_.path(kControlName)) == control_file_) {
    return false;
  }
  FILETIMER_TRY(create_run_folder(path()));
  auto pages = PageFolder::make(path());
  FILETIMER_TRY(pages);
  opened_->pages = std::move(*pages);
  // The status page after them, because a client that finds it uses the folders at once. It is
  // opened only if it is missing, since closing a second descriptor of it would drop the lock.
  if (!has_board) {
    FILETIMER_TRY(restore_status_page());
  } else if (!board.is_whole()) {
    FILETIMER_TRY(board.restore());
    board.serve();
    announce(announced_);
  }
  // The lock is held, so no other server has a socket there.
  FILETIMER_TRY(make_control());
  (void)point_to_log();  // the server can do without the link
  if (const std::string own = folder_.path(kPipeName); pipe_ != own) {
    (void)point_to(pipe_, own);
  }
  return true;
}

Status RuntimeDirectory::make_control() {
  auto made = make_control_socket(path());
  FILETIMER_TRY(made);
  control_ = std::move(*made);
  control_file_ = identity_of(folder_.path(kControlName));
  return {};
}

Status RuntimeDirectory::restore_status_page() {
  const std::string path = folder_.path(kBoardName);
  auto lock = take_server_lock(path);
  FILETIMER_TRY(lock);
  auto board = BoardFile::open(path, terms_);
  FILETIMER_TRY(board);
  lock_ = std::move(*lock);  // the old lock was on a file that no client can find any more
  std::vector<BoardFile>& boards = opened_->boards;
  boards.back().want_all_wakes();
  boards.push_back(std::move(*board));
  if (boards.size() > kMaxStatusPages) {
    boards.erase(boards.begin());
  }
  boards.back().serve();
  announce(announced_);
  return {};
}

std::optional<RequestPipe> RuntimeDirectory::replace_pipe() {
  switch (pipe().condition()) {
    case RequestPipe::Condition::kInPlace:
      report(pipe_trouble_, {});
      return std::nullopt;
    case RequestPipe::Condition::kTakenOver:
      report(pipe_trouble_,
             fmt::format("'{}' was replaced by a pipe that another process reads: requests written "
                         "there do not reach this server",
                         pipe_));
      return std::nullopt;
    case RequestPipe::Condition::kGone:
      break;
  }
  auto made = move_aside(pipe_).and_then([this] { return RequestPipe::open(pipe_); });
  if (!made) {
    report(pipe_trouble_, made.error().message);
    return std::nullopt;
  }
  return std::move(*made);
}

void RuntimeDirectory::use(RequestPipe pipe) {
  opened_->pipe = std::move(pipe);
  // On all status pages, because a client that found no reader waits for a change of its own.
  for (BoardFile& board : opened_->boards) {
    board.serve();
  }
  messages::warning("the pipe '{}' was gone: made again", pipe_);
  pipe_trouble_.clear();
}

// Writes a message if `trouble` is not the last one.
void RuntimeDirectory::report(std::string& last, std::string trouble) const {
  if (trouble != last && !trouble.empty()) {
    messages::warning("{}", trouble);
  }
  last = std::move(trouble);
}

void RuntimeDirectory::remove_control_socket() const {
  if (identity_of(folder_.path(kControlName)) == control_file_) {
    ::unlink(folder_.path(kControlName).c_str());
  }
}

void RuntimeDirectory::clean_up() {
  if (opened_) {
    opened_->pipe.remove_from_path();
  }
  remove_control_socket();
  const std::string own = folder_.path(kPipeName);
  if (pipe_ != own && S_ISLNK(mode_of(own)) && !has_passed_pipe_) {
    ::unlink(own.c_str());
  }
  if (is_fresh_) {
    remove_folder(path());
  }
}

}  // namespace filetimer
