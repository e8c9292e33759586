// SPDX-License-Identifier: MIT
#include "timer_server/runtime_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <linux/futex.h>
#include <stdlib.h>  // mkdtemp
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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
#include <limits>
#include <string_view>
#include <system_error>
#include <thread>

#include "common/due.hpp"
#include "common/limits.hpp"
#include "common/wake_protocol.hpp"
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

void remove_link(const std::string& path) {
  if (S_ISLNK(mode_of(path))) {
    ::unlink(path.c_str());
  }
}

// Makes a symlink, through which clients that know only the folder find a pipe or log elsewhere.
Status point_to(const std::string& target, const std::string& link) {
  if (const mode_t mode = mode_of(link); mode != 0) {
    if (link_target(link) == target) {
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

// Returns whether it is a folder of this user whose entries have not changed for kAbandonedAge.
bool is_old_folder(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() &&
         st.st_mtime < std::time(nullptr) - std::chrono::seconds(kAbandonedAge).count();
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
  auto taken = FileLock::take(std::move(file), path);
  if (!taken && taken.error().errno_value == EBUSY) {
    // The holder is looked for last: if two servers start at once, the other one has it only now.
    const auto state = lock_state(open_file(path.c_str(), O_RDONLY | O_NOFOLLOW).get());
    const std::string holder = state && state->holder > 0
                                   ? fmt::format("the timer_server with pid {}", state->holder)
                                   : "another timer_server";
    return failure(fmt::format("'{}' is held by {}", path, holder), EBUSY);
  }
  return taken;
}

// Removes fresh folders that servers left when they were killed. The scopes that are kept in them
// are lost: no server would have adopted them, since no two servers make the same folder.
void remove_abandoned_folders(const std::string& parent) {
  // As make_fresh_folder() names them: "run-4711-a1B2c3".
  const std::string pattern = fmt::format("{}[0-9]*-??????", kFreshFolderPrefix);
  std::size_t removed = 0;
  Directory folders(parent);
  while (const char* const name = removed < kMaxRemovedFolders ? folders.next() : nullptr) {
    const RunFolder folder{parent + "/" + name};
    // A folder with a log was named, and is not a fresh one.
    if (::fnmatch(pattern.c_str(), name, 0) != 0 || !is_old_folder(folder.dir) ||
        mode_of(folder.path(kLogName)) != 0) {
      continue;
    }
    // Held while the folder is removed, so that no server can start in it.
    if (const auto lock = take_server_lock(folder.path(kBoardName))) {
      remove_folder(folder.dir);
      ++removed;
    }
  }
}

Result<std::string> make_unique_folder(std::string pattern) {
  if (::mkdtemp(pattern.data()) == nullptr) {
    return system_error(fmt::format("cannot make the folder '{}'", pattern));
  }
  (void)!::chmod(pattern.c_str(), 0700);  // the umask may forbid its own user the search
  return pattern;
}

// For one COMMAND, so that two jobs of one user never share a folder.
Result<std::string> make_fresh_folder(const std::string& parent) {
  FILETIMER_TRY(create_run_folder(parent));
  remove_abandoned_folders(parent);
  return make_unique_folder(fmt::format("{}/{}{}-XXXXXX", parent, kFreshFolderPrefix, ::getpid()));
}

// For a host on which the default folder cannot be used, because another user has taken its name:
// in $TMPDIR or /tmp, where no server removes the folder of a server that was killed.
Result<std::string> make_private_folder() {
  const char* const named = std::getenv("TMPDIR");
  const std::string path =
      fmt::format("{}/filetimer-XXXXXX", named == nullptr || named[0] != '/' ? "/tmp" : named);
  FILETIMER_TRY(check_parents(path));
  return make_unique_folder(path);
}

// Makes the missing folders above the default log, for this user alone. Who may write to those that
// exist is not looked at, as with --log: with a umask of 002 the group of the user may.
Status make_log_folder(const std::string& log) {
  std::error_code error;
  const mode_t umask = ::umask(077);
  const std::filesystem::path folder = std::filesystem::path(log).parent_path();
  std::filesystem::create_directories(folder, error);
  ::umask(umask);
  return error ? system_error(fmt::format("cannot make the folder '{}'", folder.string()),
                              error.value())
               : Status{};
}

}  // namespace

Result<BoardFile> BoardFile::open(const std::string& path, const Settings& settings) {
  auto file = MappedFile::map(path, MappedFile::Access::kReadWrite, kBoardBytes);
  FILETIMER_TRY(file);
  FILETIMER_TRY(check_board(file->descriptor(), path));
  // By the mapping's descriptor, because closing another one of this file would drop the lock.
  if (const int error = make_room(file->descriptor(), 0, kBoardBytes); error != 0) {
    return system_error(fmt::format("'{}': cannot make room for the status page", path), error);
  }
  BoardFile opened(std::move(*file));
  Board& board = opened.board();
  // Before next_wake: see wake_protocol.hpp.
  board.warn_at.store(settings.warn_at ? warn_at_word(*settings.warn_at) : 0,
                      std::memory_order_relaxed);
  board.next_wake.store(kWakeAlways, std::memory_order_seq_cst);
  opened.announce(Announcement::kNone);  // of a server that was killed
  board.max_timeout.store(settings.max_timeout.value_or(kForever).count(),
                          std::memory_order_relaxed);
  board.default_timeout.store(settings.default_timeout.value_or(Duration::zero()).count(),
                              std::memory_order_relaxed);
  board.pid_namespace.store(this_pid_namespace(), std::memory_order_relaxed);
  board.server_pid.store(::getpid(), std::memory_order_relaxed);
  board.boot = this_boot();
  board.bytes = kBoardBytes;
  board.version = kBoardVersion;
  board.magic = kBoardMagic;
  return opened;
}

void BoardFile::serve() {
  const std::uint64_t last = board().incarnation.fetch_add(1, std::memory_order_seq_cst);
  board().counts_scans.store(last + 1, std::memory_order_relaxed);
  board().state.store(static_cast<std::uint32_t>(ServerState::kServing), std::memory_order_release);
}

void BoardFile::announce(Announcement announcement) {
  const bool is_stopped = board().state.load(std::memory_order_relaxed) ==
                          static_cast<std::uint32_t>(ServerState::kStopped);
  const auto now = static_cast<std::uint32_t>(is_stopped ? Announcement::kNone : announcement);
  std::atomic<std::uint32_t>& word = board().announcement;
  if (word.exchange(now, std::memory_order_release) != now) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
  }
}

void BoardFile::stop() {
  board().state.store(static_cast<std::uint32_t>(ServerState::kStopped), std::memory_order_release);
  board().next_wake.store(kWakeNever, std::memory_order_seq_cst);
  // After `state`, because a waiting client looks at both. Clients may open scopes again, for the
  // next server.
  announce(Announcement::kNone);
}

Result<UniqueFd> make_control_socket(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kControlName);
  if (const mode_t mode = mode_of(path); mode != 0 && !S_ISSOCK(mode)) {
    return failure(fmt::format("'{}' is in the way: expected a socket, or nothing", path));
  }
  // It gets its name when it listens: a client that finds it can connect.
  const std::string name = fmt::format("{}.new", kControlName);
  const std::string made = fmt::format("{}/{}", dir, name);
  ::unlink(made.c_str());
  const auto address = ControlAddress::in(dir, name);
  FILETIMER_TRY(address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // The file gets the mode of the descriptor. The kernel may let fewer connections wait.
  if (!socket || ::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), address->get(), ControlAddress::size()) != 0 ||
      ::listen(socket.get(), static_cast<int>(kMaxWaitingClients)) != 0 ||
      ::rename(made.c_str(), path.c_str()) != 0) {
    return system_error(fmt::format("cannot make the socket '{}'", path));
  }
  return socket;
}

Result<std::unique_ptr<RuntimeDirectory>> RuntimeDirectory::open(const Settings& settings,
                                                                 UniqueFd passed) {
  std::unique_ptr<RuntimeDirectory> directory(new RuntimeDirectory(settings));
  FILETIMER_TRY(directory->choose_folder());
  FILETIMER_TRY(directory->make_entries());
  FILETIMER_TRY(directory->open_pipe_and_log(std::move(passed)));
  if (const std::string_view kind = network_file_system(directory->path()); !kind.empty()) {
    messages::warning(
        "'{}' is on a network file system ({}): no deadline is judged while it hangs. Choose a "
        "directory in memory with --dir",
        directory->path(), kind);
  }
  return directory;
}

Status RuntimeDirectory::choose_folder() {
  folder_ = resolve_run_folder(settings_.dir);
  const auto log = settings_.log.empty() ? default_log_path(folder_) : settings_.log;
  FILETIMER_TRY(log);
  log_path_ = absolute_path(*log);
  for (const auto& [option, path] :
       {std::pair("--metrics", settings_.metrics), std::pair("--fifo", settings_.fifo)}) {
    const std::string full = path.empty() ? std::string{} : absolute_path(path);
    if (full == log_path_ || full == log_path_ + ".1") {  // a rotation replaces the latter
      return failure(fmt::format("{}: '{}' is the log: expected another path", option, path),
                     EBADF);
    }
  }
  for (const auto& [option, path] :
       {std::pair("--metrics", settings_.metrics), std::pair("--log", settings_.log)}) {
    for (const std::string_view name : {kPipeName, kControlName, kBoardName}) {
      if (!path.empty() && absolute_path(path) == folder_.path(name)) {
        return failure(
            fmt::format("{}: '{}' is the server's own: expected another path", option, path),
            EBADF);
      }
    }
  }
  if (settings_.log.empty() && !folder_.was_named) {
    FILETIMER_TRY(make_log_folder(log_path_));
  }
  if (folder_.was_named || settings_.command.empty()) {
    return {};
  }
  auto made = make_fresh_folder(folder_.dir);
  if (!made) {
    const std::string reason = made.error().message;
    made = make_private_folder();
    if (!made) {
      return failure(fmt::format("{}; {}", reason, made.error().message));
    }
    messages::warning("{}; the directory is '{}'", reason, *made);
  }
  folder_.dir = std::move(*made);
  is_fresh_ = true;
  return {};
}

// Makes the entries that every client needs, as far as they are missing. The status page comes
// after the folders, because a client that finds it uses them at once, and before the pipe, because
// a client that opens that looks at it.
Status RuntimeDirectory::make_entries() {
  auto folder = create_run_folder(path());
  FILETIMER_TRY(folder);
  // While it is locked, systemd-tmpfiles removes nothing in it: the log and the pages may be older
  // than the 10 days that files have in /tmp.
  (void)::flock(folder->get(), LOCK_SH | LOCK_NB);
  locked_folder_ = std::move(*folder);
  auto pages = PageFolder::make(path());
  FILETIMER_TRY(pages);
  pages_ = std::move(*pages);
  if (!has_status_page()) {
    FILETIMER_TRY(make_status_page());
  }
  // The lock is held, so no other server has a socket there. If none can be made, the entries are
  // not complete, even if an earlier one of this server is there.
  control_file_.reset();
  auto control = make_control_socket(path());
  FILETIMER_TRY(control);
  control_ = std::move(*control);
  control_file_ = identity_of(folder_.path(kControlName));
  return {};
}

Status RuntimeDirectory::make_status_page() {
  const std::string path = folder_.path(kBoardName);
  if (lock_ && identity_of(path) == lock_->identity()) {
    ::unlink(path.c_str());  // it was cut short
  }
  auto lock = take_server_lock(path);
  FILETIMER_TRY(lock);
  auto board = BoardFile::open(path, settings_);
  FILETIMER_TRY(board);
  if (identity_of(path) != lock->identity()) {
    return failure(fmt::format("'{}' was replaced while it was opened", path), EAGAIN);
  }
  if (board_) {
    // Clients that have mapped it look at the path once a second, if they open scopes. Later scans
    // are not counted on it, so each deadline gets a message.
    board_->announce(Announcement::kNone);
    announce_scan(board_->board());
    board_->board().scans.store(0, std::memory_order_seq_cst);
    board_->serve();
  }
  lock_ = std::move(*lock);
  board_.emplace(std::move(*board));
  return {};
}

Status RuntimeDirectory::open_pipe_and_log(UniqueFd passed) {
  const std::string own = folder_.path(kPipeName);
  std::string path = settings_.fifo.empty() ? own : absolute_path(settings_.fifo);
  std::error_code none;
  if (const std::filesystem::path named = path;
      named.filename() == kPipeName &&
      std::filesystem::equivalent(named.parent_path(), folder_.dir, none)) {
    path = own;  // which --fifo may name by another path
  }
  if (path == own) {
    remove_link(own);  // left by a server whose pipe was elsewhere
  }
  const bool is_passed = static_cast<bool>(passed);
  auto pipe = is_passed ? RequestPipe::take(path, std::move(passed)) : open_pipe(path);
  if (!pipe && is_passed) {
    return failure(pipe.error().message, EBADF);
  }
  FILETIMER_TRY(pipe);
  pipe_ = std::move(*pipe);
  auto log = RecordLog::open({.path = log_path_, .max_bytes = settings_.log_max_bytes});
  FILETIMER_TRY(log);
  log_ = std::move(*log);
  // Every process finds the same regular file, also by a symlink; /dev/stderr differs for each. The
  // log is looked at now: later its file system may hang, or a rotator may have moved it.
  const bool is_file = S_ISREG(mode_of(log_path_)) ||
                       (std::filesystem::is_regular_file(log_path_, none) &&
                        log_path_ != folder_.path(kLogLinkName) &&
                        !log_path_.starts_with("/dev/") && !log_path_.starts_with("/proc/"));
  is_log_linked_ = log_path_ != folder_.path(kLogName) && is_file;
  return make_links();
}

// The link to the log stays when the server ends, because the log is most often read afterwards.
Status RuntimeDirectory::make_links() const {
  if (const std::string own = folder_.path(kPipeName); pipe_->path() != own) {
    FILETIMER_TRY(point_to(pipe_->path(), own));
  }
  const std::string link = folder_.path(kLogLinkName);
  if (is_log_linked_) {
    return point_to(log_path_, link);
  }
  if (log_path_ != link) {
    remove_link(link);  // left by a server whose log was elsewhere
  }
  return {};
}

bool RuntimeDirectory::restore() {
  const bool has_folders = std::ranges::all_of(
      std::array{kOwnersName, kStacksName, kServerPagesName},
      [this](std::string_view name) { return S_ISDIR(mode_of(pages_->page_path(name))); });
  const std::string pipe = folder_.path(kPipeName);
  const bool has_pipe_link = pipe_->path() == pipe || mode_of(pipe) != 0;
  const bool is_complete = has_folders && has_pipe_link && has_status_page() &&
                           identity_of(folder_.path(kControlName)) == control_file_;
  const Status made = is_complete ? Status{} : make_entries();
  report(folder_trouble_, made ? std::string{} : made.error().message);
  if (is_complete || !made) {
    return false;
  }
  board_->serve();
  (void)make_links();  // the server can do without them
  messages::warning("an entry of '{}' was removed or cut short: made again", path());
  return true;
}

bool RuntimeDirectory::is_pipe_gone() {
  const RequestPipe::Condition condition = pipe_->condition();
  if (condition == RequestPipe::Condition::kInPlace) {
    report(pipe_trouble_, {});
  } else if (condition == RequestPipe::Condition::kTakenOver) {
    report(pipe_trouble_,
           fmt::format("'{}' was replaced by a pipe that another process reads: requests written "
                       "there do not reach this server",
                       pipe_->path()));
  }
  // In a directory that another server has taken, the path is that server's.
  const bool is_ours = pipe_->path() != folder_.path(kPipeName) || has_status_page();
  return is_ours && condition == RequestPipe::Condition::kGone;
}

void RuntimeDirectory::restore_pipe() {
  const std::string path = pipe_->path();
  if (const mode_t mode = mode_of(path); mode != 0 && !S_ISFIFO(mode)) {
    const std::string kept = fmt::format("{}.not-a-pipe.{}", path, Instant::now().ns);
    ::rename(path.c_str(), kept.c_str());  // if it fails, open() says what is in the way
  }
  auto made = RequestPipe::open(path);
  report(pipe_trouble_, made ? std::string{} : made.error().message);
  if (made) {
    pipe_ = std::move(*made);
    board_->serve();
    messages::warning("the pipe '{}' was gone: made again", path);
  }
}

// Writes a message if `trouble` is not the last one.
void RuntimeDirectory::report(std::string& last, std::string trouble) const {
  if (trouble != last && !trouble.empty()) {
    messages::warning("{}", trouble);
  }
  last = std::move(trouble);
}

RuntimeDirectory::~RuntimeDirectory() {
  remove_control_socket();
  if (pipe_) {
    pipe_->remove_from_path();
    if (const std::string own = folder_.path(kPipeName);
        pipe_->path() != own && !pipe_->outlives_server() && has_status_page()) {
      remove_link(own);
    }
  }
  if (is_fresh_) {
    remove_folder(path());
  }
}

}  // namespace filetimer
