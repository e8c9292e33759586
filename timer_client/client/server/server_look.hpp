// Finds a server, and finds out about it without a request: from its status page, from the lock on
// that, which the kernel releases however the server ends, and from what /proc says of the process
// that holds it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

// --- the status page ---

// A client's view of the server's status page: mapped once, read-only. A server that starts later
// writes to the same file. Immutable once it is made; may be read in any thread.
class BoardView {
 public:
  // Opens the status page of the runtime directory `dir`: a regular file of this user, not through
  // a symlink, whole, and either blank (no server has started yet) or of this version and this
  // boot. A status page whose lock is held is of this boot. Makes the directory and a blank status
  // page if they are missing, and replaces a status page of another boot that no server holds.
  static Result<BoardView> open_or_make(const std::string& dir);
  // Returns a status page of no server, all zeroes: no scope writes a wake-up message.
  static BoardView none();
  // Returns the status page of a client that is switched off: its scopes are refused.
  static BoardView off();
  [[nodiscard]] bool is_off() const;

  [[nodiscard]] const Board& board() const { return *board_; }
  // Returns which file the status page is; all zeroes for none().
  [[nodiscard]] FileIdentity identity() const { return identity_; }
  // Returns whether the file was cut short: the view then shows zeroes and no server.
  [[nodiscard]] bool is_broken() const { return file_ && file_->is_broken(); }

 private:
  BoardView(MappedFile file, FileIdentity identity)
      : file_(std::move(file)),
        board_(static_cast<const Board*>(file_->data())),
        identity_(identity) {}
  explicit BoardView(const Board& board) : board_(&board) {}

  std::optional<MappedFile> file_;
  const Board* board_;
  FileIdentity identity_;
};

// --- the server ---

// The paths by which a client finds its server.
struct ServerLocation {
  std::string pipe;
  // The runtime directory: status page, pages and control socket. Empty: only the pipe is known.
  std::string run_folder;
};

// Returns the place that `dir` names; empty: $FILETIMER_DIR, else the default directory.
ServerLocation locate_server(const std::string& dir);
// Returns the place of the pipe `fifo`; empty: that of `dir` or of $FILETIMER_DIR, else
// $TORCHELASTIC_TIMER_FILE, else that of the default directory. A pipe in the runtime directory of
// a server that runs is that server's, whatever `dir` is.
ServerLocation locate_server(const std::string& dir, const std::string& fifo);

// The server of a runtime directory.
struct ServerSeen {
  bool is_there = false;
  std::string why_not;              // one clear line
  pid_t pid = 0;                    // 0: none, or none that can be seen from here
  Duration max_timeout = kForever;  // its --max-timeout
  Announcement announcement = Announcement::kNone;
  // Whether it is in another pid namespace, in which a pid of this one names another process; false
  // if that is not known. Also that of the last server, if none runs.
  bool is_in_other_namespace = false;
};
// Looks for the server of the runtime directory `dir`.
ServerSeen look_for_server(const std::string& dir);

// Waits until a process reads the pipe. Returns one clear line if none does after `timeout`; empty:
// one does.
// `while_waiting`, unless it is null, is called between two attempts.
std::string wait_for_server(const std::string& pipe, Duration timeout,
                            const std::function<void()>& while_waiting = {});

// Returns one clear line if the server at `place` has announced that it watches no new scopes.
// Empty: it watches them, no server runs, or it is not known (a bare pipe).
std::string why_no_new_scopes(const ServerLocation& place);

// Returns one clear line if the server of the runtime directory is_in_other_namespace; else empty.
std::string why_no_pids(const std::string& run_folder);

}  // namespace filetimer
