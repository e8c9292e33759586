// Talks to the service manager that started the server: systemd, or another one with the protocols
// of sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3). Does nothing without a service
// manager. A notification for which the manager has no room is left out: the loop never waits.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/system/event_loop.hpp"

namespace filetimer {

// Returns the request pipe that `ListenFIFO=` opened, or an empty descriptor if none was passed to
// this process. Fails if more than one descriptor was passed. Must be called once, before any
// thread is started: it removes LISTEN_* from the environment.
Result<UniqueFd> take_passed_descriptor();

class ServiceManager {
 public:
  // Lets the loop send keep-alives, if the service manager asks for them (WatchdogSec=). They stop
  // when the loop hangs.
  void start_keep_alives(EventLoop& loop);
  void notify_stopping();
  // Sends the line that `systemctl status` shows, if it has changed, or was left out. The first one
  // says that the server is ready.
  void notify_status(std::size_t workers, std::uint64_t killed);

 private:
  void keep_alive();

  std::string last_status_;
  Duration keep_alive_every_ = kForever;
  EventSource keep_alive_timer_;
};

}  // namespace filetimer
