// What the runtime directory tells of its server without asking it: by the lock on the board, which
// the kernel frees however the server ends, and by what /proc says of who holds it.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "common/board.hpp"
#include "common/boot.hpp"
#include "common/clock.hpp"
#include "timer_client/client/server/server_location.hpp"

namespace filetimer {

struct ServerSeen {
  bool is_there = false;
  std::string why_not;              // one clear line
  pid_t pid = 0;                    // 0: none, or none that can be seen from here
  BootId boot{};                    // as the last server knew it; all zeroes: not known
  Duration max_timeout = kForever;  // its --max-timeout
  Announcement announcement = Announcement::kNone;
};
ServerSeen look_for_server(const std::string& dir);

// Waits until a process reads the pipe. Returns why none does after `timeout`; empty: one does.
// `while_waiting`, if there is one, is called between two looks.
std::string wait_for_server(const std::string& pipe, Duration timeout,
                            const std::function<void()>& while_waiting = {});

// One clear line when the server at `place` has announced that it watches no new scopes. Empty when
// it watches them, when there is none, and when nothing tells (a bare pipe).
std::string why_no_new_scopes(const ServerLocation& place);

// One clear line when the board in `run_folder` says that its server lives in another pid
// namespace: a pid of this one would name a stranger there. Empty when it is the same, and when
// nothing tells.
std::string why_no_pids(const std::string& run_folder);

// Of the server that somebody waits for.
enum class ServerProcess {
  kAlive,    // or not to be seen from here, and something reads its pipe
  kStopped,  // by a signal or a debugger
  kGone,
};
std::string_view name_of(ServerProcess process);

// Follows one server: a later one in the same folder is not it.
class ServerWatch {
 public:
  explicit ServerWatch(const ServerLocation& place);
  [[nodiscard]] ServerProcess look() const;

 private:
  const ServerLocation& place_;
  const ServerSeen first_;
};

}  // namespace filetimer
