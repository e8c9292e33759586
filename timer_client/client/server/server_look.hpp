// Finds a server, and finds out about it without a request: from the lock on the status page, which
// the kernel releases however the server ends, and from what /proc says of the process that holds
// it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "common/board.hpp"
#include "common/clock.hpp"

namespace filetimer {

// The paths by which a client finds its server.
struct ServerLocation {
  std::string pipe;
  // The runtime directory: status page, pages, and pipes for answers. Empty: only the pipe is
  // known.
  std::string run_folder;
};

// Returns the place that `dir` names; empty: $FILETIMER_DIR, else the default directory.
ServerLocation locate_server(const std::string& dir);
// Returns the place of the pipe `fifo`; empty: that of `dir` or of $FILETIMER_DIR, else
// $TORCHELASTIC_TIMER_FILE, else that of the default directory.
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

// Waits until a process reads the pipe. Returns why none does after `timeout`; empty: one does.
// `while_waiting`, unless it is null, is called between two attempts.
std::string wait_for_server(const std::string& pipe, Duration timeout,
                            const std::function<void()>& while_waiting = {});

// Returns one clear line if the server at `place` has announced that it watches no new scopes.
// Empty: it watches them, no server runs, or it is not known (a bare pipe).
std::string why_no_new_scopes(const ServerLocation& place);

// Returns one clear line if the server of the runtime directory is_in_other_namespace; else empty.
std::string why_no_pids(const std::string& run_folder);

}  // namespace filetimer
