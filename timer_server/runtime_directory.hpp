// The directory that a server shares with its clients: made, checked, locked, and kept in place.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/result.hpp"
#include "timer_server/control/reply_folder.hpp"
#include "timer_server/pages/board_file.hpp"
#include "timer_server/pages/page_folder.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/requests/request_pipe.hpp"
#include "timer_server/server_lock.hpp"
#include "timer_server/settings.hpp"

namespace filetimer {

// Why a server cannot start: what main() says, and the exit status.
struct StartFailure {
  int status = 0;  // kFailed, kAnotherServer, or kUsage
  std::string message;
};

// Holds the lock that makes this server the only one of the directory for as long as it lives, and
// all that lies in the directory. It is looked at entry by entry while the server runs, because
// users and cleaners of /tmp remove things. Used on the loop thread.
class RuntimeDirectory {
 public:
  // Chooses, makes, checks and locks the directory. A server around COMMAND for which no directory
  // is named gets a fresh one inside the default one.
  static tl::expected<RuntimeDirectory, StartFailure> take(const Settings& settings);
  RuntimeDirectory(RuntimeDirectory&&) noexcept = default;
  RuntimeDirectory& operator=(RuntimeDirectory&&) noexcept = default;

  // Opens everything in the directory, the request pipe or the `passed` one, and the log, whose
  // thread it starts: the process must not fork afterwards. Call it once, before what follows.
  tl::expected<std::unique_ptr<RecordLog>, StartFailure> open(const Settings& settings,
                                                              UniqueFd passed);

  // Warns where calls that the loop makes in the directory may hang. Call it after
  // messages::start().
  void warn_about_file_system() const;

  [[nodiscard]] const std::string& path() const { return dir_; }
  [[nodiscard]] const std::string& log_path() const { return log_; }
  [[nodiscard]] RequestPipe& pipe() { return opened_->pipe; }
  [[nodiscard]] const RequestPipe& pipe() const { return opened_->pipe; }
  [[nodiscard]] PageFolder& pages() { return opened_->pages; }
  [[nodiscard]] const PageFolder& pages() const { return opened_->pages; }
  // The caller keeps the folder of reply pipes; a new one comes with every restore().
  [[nodiscard]] ReplyFolder take_replies() { return std::move(*opened_->replies); }

  // The status page that clients find now.
  [[nodiscard]] Board& status_page() { return opened_->boards.back().board(); }
  // Clients take their pages for watched from here on: see BoardFile::serve().
  void serve();
  // Says so on every status page that a client may have mapped. Does nothing after stop_serving().
  void announce(Announcement announcement);
  // Clients need not wake this server any more; the status page is the next server's.
  void stop_serving();

  // Makes again what was removed of the directory, the pipe aside. Returns whether anything was:
  // then the folders of pages and replies are new.
  bool restore();
  // Returns a new request pipe where the one at the path has gone, for use().
  std::optional<RequestPipe> replace_pipe();
  // Clients that found no reader try again.
  void use(RequestPipe pipe);
  // What keeps requests from this server, as last seen by replace_pipe(); empty: nothing.
  [[nodiscard]] const std::string& pipe_trouble() const { return pipe_trouble_; }

  // Removes the request pipe, what clients would take for a server, and a fresh directory whole.
  // The lock is kept until this object goes.
  void clean_up();

 private:
  explicit RuntimeDirectory(ServerLock lock) : lock_(std::move(lock)) {}
  [[nodiscard]] std::string path_of(std::string_view name) const;
  Status point_to_log() const;
  Result<bool> restore_entries();
  void report(std::string& last, std::string trouble) const;

  // Status pages that are kept: the one in place, and those that were removed, for the clients that
  // have mapped them.
  static constexpr std::size_t kMaxStatusPages = 4;
  struct Opened {
    RequestPipe pipe;
    std::vector<BoardFile> boards;
    PageFolder pages;
    std::optional<ReplyFolder> replies;
  };

  std::string dir_;
  std::string pipe_;
  std::string log_;
  BoardFile::Terms terms_;
  bool is_fresh_ = false;
  bool has_passed_pipe_ = false;  // and leaves the way to it in place
  bool is_serving_ = true;
  Announcement announced_ = Announcement::kNone;
  ServerLock lock_;
  std::optional<Opened> opened_;
  std::string pipe_trouble_;    // as last reported
  std::string folder_trouble_;  // as last reported
};

}  // namespace filetimer
