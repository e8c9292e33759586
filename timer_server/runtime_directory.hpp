// The runtime directory, which a server shares with its clients: made, checked, locked, and kept in
// place.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/kept_fd.hpp"
#include "common/mapped_file.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/requests/request_pipe.hpp"
#include "timer_server/scopes/board_file.hpp"
#include "timer_server/scopes/page_folder.hpp"
#include "timer_server/settings/settings.hpp"

namespace filetimer {

// Why a server cannot start: the message of main(), and the exit status.
struct StartFailure {
  // EBUSY: another server has what could not be taken.
  StartFailure(const Error& error)
      : message(error.message),
        status(error.errno_value == EBUSY ? exit_status::kAnotherServer : exit_status::kFailed) {}

  std::string message;
  int status;
};

// Makes the control socket in the runtime directory `dir`, whose lock this process holds: a socket
// that is there was left by another server, and is removed. Fails if another file is in the way.
Result<UniqueFd> make_control_socket(const std::string& dir);

// Holds the lock that makes this server the only one of the directory, for the lifetime of the
// object, and opens the entries of the directory. While the server runs, restore() and
// replace_pipe() check each entry, because users and cleaners of /tmp remove files.
class RuntimeDirectory {
 public:
  // Chooses, makes, checks and locks the directory. A server with COMMAND and without a named
  // directory gets a fresh one inside the default one.
  static tl::expected<RuntimeDirectory, StartFailure> take(const Settings& settings);
  RuntimeDirectory(RuntimeDirectory&&) noexcept = default;
  RuntimeDirectory& operator=(RuntimeDirectory&&) noexcept = default;

  // Opens the entries of the directory, the request pipe (or takes the `passed` one), and the log,
  // and starts the log's thread: the process must not fork afterwards. Must be called once, before
  // the members below.
  tl::expected<std::shared_ptr<RecordLog>, StartFailure> open(const Settings& settings,
                                                              UniqueFd passed);

  // Warns if the default directory could not be used, and if the directory is on a network file
  // system, where calls of the loop may hang. Called after messages::start().
  void warn_about_place() const;

  [[nodiscard]] const std::string& path() const { return folder_.dir; }
  [[nodiscard]] RequestPipe& pipe() { return opened_->pipe; }
  [[nodiscard]] const RequestPipe& pipe() const { return opened_->pipe; }
  [[nodiscard]] PageFolder& pages() { return opened_->pages; }
  // Gives the control socket to the caller. After a restore() there is a new one.
  [[nodiscard]] UniqueFd take_control_socket() { return std::move(control_); }

  [[nodiscard]] BoardFile& status_page() { return opened_->boards.back(); }
  void serve();
  // Writes the announcement to every status page that a client may have mapped. Does nothing after
  // stop_serving().
  void announce(Announcement announcement);
  // Sets the status pages to stopped. The one in place is left to the next server.
  void stop_serving();

  // Makes entries again that were removed, without the request pipe, and a status page that was cut
  // short. Returns whether any was: then the folder of pages and the control socket are new.
  bool restore();
  // Returns a new request pipe, for use(), if the one at the path is gone.
  std::optional<RequestPipe> replace_pipe();
  // Reads `pipe` from now on. Clients that found no reader try again.
  void use(RequestPipe pipe);
  // Returns why requests do not reach this server, as replace_pipe() found last; empty: they do.
  [[nodiscard]] const std::string& pipe_trouble() const { return pipe_trouble_; }

  // Returns whether the directory is a fresh one, which clean_up() removes.
  [[nodiscard]] bool ends_with_server() const { return is_fresh_; }
  // Removes the control socket: no client finds the server any more.
  void remove_control_socket() const;
  // Removes the request pipe, the control socket, the link to the pipe, and a fresh directory with
  // all its entries. Keeps the lock.
  void clean_up();

 private:
  explicit RuntimeDirectory(FileLock lock) : lock_(std::move(lock)) {}
  Status point_to_log() const;
  Result<bool> restore_entries();
  Status make_control();
  Status restore_status_page();
  void report(std::string& last, std::string trouble) const;

  // The most status pages that are kept: the one in place, and those that were removed, which
  // clients may have mapped.
  static constexpr std::size_t kMaxStatusPages = 4;
  struct Opened {
    RequestPipe pipe;
    std::vector<BoardFile> boards;
    PageFolder pages;
  };

  RunFolder folder_;
  std::string pipe_;
  std::string log_;
  BoardFile::Terms terms_;
  bool is_fresh_ = false;
  std::string no_default_;        // why the fresh directory is not in the default one; empty: it is
  bool has_passed_pipe_ = false;  // the link to it then stays
  bool is_serving_ = true;
  Announcement announced_ = Announcement::kNone;
  FileLock lock_;
  std::optional<Opened> opened_;
  UniqueFd control_;
  FileIdentity control_file_;
  std::string pipe_trouble_;    // as last reported
  std::string folder_trouble_;  // as last reported
};

}  // namespace filetimer
