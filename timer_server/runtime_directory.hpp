// The runtime directory, which a server shares with its clients: made, checked, locked, and kept in
// place.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/board.hpp"
#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/requests/request_pipe.hpp"
#include "timer_server/scopes/page_folder.hpp"
#include "timer_server/settings/settings.hpp"

namespace filetimer {

// The status page as the server writes it: the file `server` of the runtime directory. The lock on
// the same file makes this the only server.
class BoardFile {
 public:
  // Opens the file and writes the settings that clients need and "wake me always". Called with the
  // lock held.
  static Result<BoardFile> open(const std::string& path, const Settings& settings);

  // Sets the state to serving and increments the incarnation. Called when the pipe is open and
  // before the first scan, and again when the pipe was replaced: a client that still finds the old
  // incarnation, under which the pipe had no reader, writes no wake-up message and must be found by
  // that scan; a client that finds the new one must be able to write.
  void serve();
  // Returns the page, for wake_protocol.hpp.
  [[nodiscard]] Board& board() const { return *static_cast<Board*>(file_.data()); }
  // Writes the announcement and wakes the clients that wait for a change of it. Does nothing after
  // stop().
  void announce(Announcement announcement);
  // Sets the state to stopped, and leaves the page to the next server. Clients write no wake-up
  // messages from then on.
  void stop();

  // Any process of the user may cut the file short. What is written from then on reaches no client.
  // Returns whether a write has found the file too short.
  [[nodiscard]] bool was_cut() const { return file_.is_broken(); }
  // Returns whether the file has its whole length, and every write found it so. A client that finds
  // it cut short makes it whole again, with zeroes, perhaps before a write of the server.
  [[nodiscard]] bool is_whole() const {
    struct stat st {};
    return !was_cut() && ::fstat(file_.descriptor(), &st) == 0 &&
           static_cast<std::size_t>(st.st_size) >= kBoardBytes && board().magic == kBoardMagic;
  }

 private:
  explicit BoardFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
};

// Makes the control socket in the runtime directory `dir`, whose lock this process holds: a socket
// that is there was left by another server, and is removed. Fails if another file is in the way.
Result<UniqueFd> make_control_socket(const std::string& dir);

// Holds the lock that makes this server the only one of the directory, for the lifetime of the
// object, and opens the entries of the directory. While the server runs, restore() and
// is_pipe_gone() check each entry, because users and cleaners of /tmp remove files.
class RuntimeDirectory {
 public:
  // Chooses, makes, checks and locks the directory, and opens its entries, the request pipe (or
  // takes the `passed` one) and the log. A server with COMMAND and without a named directory gets a
  // fresh one inside the default one. Fails with EBUSY if another server has what is needed, and
  // with EBADF if the passed pipe cannot be used. The process must not fork afterwards, since the
  // log has a thread. `settings` must outlive the directory.
  static Result<std::unique_ptr<RuntimeDirectory>> open(const Settings& settings, UniqueFd passed);
  // Removes the request pipe, the control socket, the link to the pipe, and a fresh directory with
  // all its entries.
  ~RuntimeDirectory();

  [[nodiscard]] const std::string& path() const { return folder_.dir; }
  [[nodiscard]] RequestPipe& pipe() { return *pipe_; }
  [[nodiscard]] PageFolder& pages() { return *pages_; }
  [[nodiscard]] const std::shared_ptr<RecordLog>& log() const { return log_; }
  // Gives the control socket to the caller. After a restore() there is a new one.
  [[nodiscard]] UniqueFd take_control_socket() { return std::move(control_); }

  [[nodiscard]] BoardFile& status_page() { return *board_; }
  // Returns whether the status page at the path is this server's. Without it another server may
  // have the directory.
  [[nodiscard]] bool has_status_page() const {
    return lock_ && identity_of(folder_.path(kBoardName)) == lock_->identity() &&
           board_->is_whole();
  }

  // Makes entries again that were removed, without the request pipe, and a status page that was cut
  // short. Returns whether any was: then the folder of pages and the control socket are new, and
  // the status page has no announcement.
  bool restore();
  // Returns whether the path has no pipe that is read. Then restore_pipe() makes a new one there,
  // which is read from now on, if it can. Clients that found no reader try again.
  bool is_pipe_gone();
  void restore_pipe();
  // Returns why requests do not reach this server; empty: they do.
  [[nodiscard]] const std::string& pipe_trouble() const { return pipe_trouble_; }

  // Returns whether the directory is a fresh one, which is removed at the end.
  [[nodiscard]] bool ends_with_server() const { return is_fresh_; }
  // Removes the control socket: no client finds the server any more.
  void remove_control_socket() const {
    if (identity_of(folder_.path(kControlName)) == control_file_) {
      ::unlink(folder_.path(kControlName).c_str());
    }
  }

 private:
  explicit RuntimeDirectory(const Settings& settings) : settings_(settings) {}
  Status choose_folder();
  Status make_entries();
  Status make_status_page();
  Status open_pipe_and_log(UniqueFd passed);
  Status make_links() const;
  void report(std::string& last, std::string trouble) const;

  const Settings& settings_;
  RunFolder folder_;
  std::string log_path_;
  bool is_log_linked_ = false;  // another path than the default one, of a regular file
  bool is_fresh_ = false;
  UniqueFd locked_folder_;  // against cleaners of /tmp
  std::optional<FileLock> lock_;
  std::optional<BoardFile> board_;
  std::optional<PageFolder> pages_;
  std::optional<RequestPipe> pipe_;
  std::shared_ptr<RecordLog> log_;
  UniqueFd control_;
  std::optional<FileIdentity> control_file_;  // of this server; nothing: none was made
  std::string pipe_trouble_;                  // as last reported
  std::string folder_trouble_;                // as last reported
};

}  // namespace filetimer
