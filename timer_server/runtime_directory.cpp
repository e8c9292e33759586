// SPDX-License-Identifier: MIT
#include "timer_server/runtime_directory.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include "common/control.hpp"
#include "common/due.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

tl::unexpected<StartFailure> failed(const Error& error, int status = exit_status::kFailed) {
  return tl::unexpected<StartFailure>({status, error.message});
}

// EBUSY: another server has what could not be taken.
tl::unexpected<StartFailure> not_taken(const Error& error) {
  return failed(error,
                error.errno_value == EBUSY ? exit_status::kAnotherServer : exit_status::kFailed);
}

// Returns the mode of the file at `path`; 0: there is none. Does not follow a symlink.
mode_t mode_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode : 0;
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

// Returns the path that --log or the directory says. Makes the folder of a log for which neither
// names one.
Result<std::string> log_path_of(const Settings& settings, const RunFolder& folder) {
  if (!settings.log.empty()) {
    return settings.log;
  }
  auto path = default_log_path(folder);
  if (path && !folder.was_named()) {
    const std::string parent = std::filesystem::path(*path).parent_path().string();
    if (auto made = create_run_folder(parent); !made) {
      return tl::unexpected<Error>(std::move(made.error()));
    }
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
  if (!address) {
    return tl::unexpected<Error>(address.error());
  }
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
  if (!log) {
    return failed(log.error());
  }
  std::optional<FileLock> held;
  std::string no_default;
  if (is_fresh) {
    auto made = make_fresh_folder(folder.dir);
    if (!made) {
      no_default = made.error().message;
      made = make_private_folder();
    }
    if (!made) {
      return failed({fmt::format("{}; {}", no_default, made.error().message)});
    }
    folder.dir = made->path;
    held = std::move(made->lock);
  } else {
    if (auto checked = create_run_folder(folder.dir); !checked) {
      return failed(checked.error());
    }
    auto lock = take_server_lock(folder.path(kBoardName));
    if (!lock) {
      return not_taken(lock.error());
    }
    held = std::move(*lock);
  }
  RuntimeDirectory directory(std::move(*held));
  directory.dir_ = folder.dir;
  directory.pipe_ = settings.fifo.empty()
                        ? folder.path(kPipeName)
                        : std::filesystem::absolute(settings.fifo).lexically_normal().string();
  directory.log_ = std::filesystem::absolute(*log).lexically_normal().string();
  directory.is_fresh_ = is_fresh;
  directory.no_default_ = std::move(no_default);
  directory.terms_ = {.max_timeout = settings.max_timeout.value_or(kForever),
                      .default_timeout = settings.default_timeout.value_or(Duration::zero()),
                      .warn_at = settings.warn_at ? warn_at_word(*settings.warn_at) : 0};
  return directory;
}

tl::expected<std::unique_ptr<RecordLog>, StartFailure> RuntimeDirectory::open(
    const Settings& settings, UniqueFd passed) {
  // The status page first, because clients that open the pipe look at it.
  auto board = BoardFile::open(path_of(kBoardName), terms_);
  if (!board) {
    return failed(board.error());
  }
  auto pages = PageFolder::make(dir_);
  if (!pages) {
    return failed(pages.error());
  }
  if (Status made = make_control(); !made) {
    return failed(made.error());
  }
  const std::string own = path_of(kPipeName);
  if (pipe_ == own && S_ISLNK(mode_of(own))) {
    ::unlink(own.c_str());  // left by a server whose pipe was elsewhere
  }
  has_passed_pipe_ = static_cast<bool>(passed);
  auto pipe = passed ? RequestPipe::take(pipe_, std::move(passed)) : open_pipe(pipe_);
  if (!pipe) {
    // A restart with the same arguments fails again.
    return has_passed_pipe_ ? failed(pipe.error(), exit_status::kUsage) : not_taken(pipe.error());
  }
  opened_.emplace(Opened{std::move(*pipe), {}, std::move(*pages)});
  opened_->boards.push_back(std::move(*board));
  if (pipe_ != own) {
    if (Status linked = point_to(pipe_, own); !linked) {
      return failed(linked.error());
    }
  }
  RecordLog::Settings log_settings;
  log_settings.path = log_;
  log_settings.max_bytes = settings.log_max_bytes;
  auto log = RecordLog::open(std::move(log_settings));
  if (!log) {
    return failed(log.error());
  }
  if (Status linked = point_to_log(); !linked) {
    return failed(linked.error());
  }
  return std::move(*log);
}

// The link stays when the server ends, because the log is most often read afterwards.
Status RuntimeDirectory::point_to_log() const {
  const std::string link = path_of(kLogLinkName);
  // Every process finds the same regular file; /dev/stderr differs for each.
  if (log_ != path_of(kLogName) && S_ISREG(mode_of(log_))) {
    return point_to(log_, link);
  }
  if (S_ISLNK(mode_of(link))) {
    ::unlink(link.c_str());  // left by a server whose log was elsewhere
  }
  return {};
}

std::string RuntimeDirectory::path_of(std::string_view name) const {
  return fmt::format("{}/{}", dir_, name);
}

void RuntimeDirectory::warn_about_place() const {
  if (!no_default_.empty()) {
    messages::warning("{}; the directory is '{}'", no_default_, dir_);
  }
  if (const std::string_view kind = network_file_system(dir_); !kind.empty()) {
    messages::warning(
        "'{}' is on a network file system ({}): no deadline is judged while it hangs. Choose a "
        "directory in memory with --dir",
        dir_, kind);
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
  messages::warning("an entry of '{}' was removed or cut short: made again", dir_);
  return true;
}

Result<bool> RuntimeDirectory::restore_entries() {
  const bool has_board = identity_of(path_of(kBoardName)) == lock_.identity();
  BoardFile& board = opened_->boards.back();
  const bool has_pages = std::ranges::all_of(
      std::array{kOwnersName, kStacksName, kServerPagesName},
      [this](std::string_view name) { return S_ISDIR(mode_of(opened_->pages.page_path(name))); });
  if (has_board && board.is_whole() && has_pages &&
      identity_of(path_of(kControlName)) == control_file_) {
    return false;
  }
  if (auto made = create_run_folder(dir_); !made) {
    return tl::unexpected<Error>(std::move(made.error()));
  }
  auto pages = PageFolder::make(dir_);
  if (!pages) {
    return tl::unexpected<Error>(std::move(pages.error()));
  }
  opened_->pages = std::move(*pages);
  // The status page after them, because a client that finds it uses the folders at once. It is
  // opened only if it is missing, since closing a second descriptor of it would drop the lock.
  if (!has_board) {
    if (Status restored = restore_status_page(); !restored) {
      return tl::unexpected<Error>(std::move(restored.error()));
    }
  } else if (!board.is_whole()) {
    if (Status restored = board.restore(); !restored) {
      return tl::unexpected<Error>(std::move(restored.error()));
    }
    board.serve();
    announce(announced_);
  }
  // The lock is held, so no other server has a socket there.
  if (Status made = make_control(); !made) {
    return tl::unexpected<Error>(std::move(made.error()));
  }
  (void)point_to_log();  // the server can do without the link
  if (const std::string own = path_of(kPipeName); pipe_ != own) {
    (void)point_to(pipe_, own);
  }
  return true;
}

Status RuntimeDirectory::make_control() {
  auto made = make_control_socket(dir_);
  if (!made) {
    return tl::unexpected<Error>(std::move(made.error()));
  }
  control_ = std::move(*made);
  control_file_ = identity_of(path_of(kControlName));
  return {};
}

Status RuntimeDirectory::restore_status_page() {
  const std::string path = path_of(kBoardName);
  auto lock = take_server_lock(path);
  if (!lock) {
    return tl::unexpected<Error>(std::move(lock.error()));
  }
  auto board = BoardFile::open(path, terms_);
  if (!board) {
    return tl::unexpected<Error>(std::move(board.error()));
  }
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
  const Status moved = move_aside(pipe_);
  auto made = moved ? RequestPipe::open(pipe_) : tl::unexpected<Error>(moved.error());
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
  if (identity_of(path_of(kControlName)) == control_file_) {
    ::unlink(path_of(kControlName).c_str());
  }
}

void RuntimeDirectory::clean_up() {
  if (opened_) {
    opened_->pipe.remove_from_path();
  }
  remove_control_socket();
  const std::string own = path_of(kPipeName);
  if (pipe_ != own && S_ISLNK(mode_of(own)) && !has_passed_pipe_) {
    ::unlink(own.c_str());
  }
  if (is_fresh_) {
    std::error_code ec;
    std::filesystem::remove_all(dir_, ec);
  }
}

}  // namespace filetimer
