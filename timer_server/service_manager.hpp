// What passes between the server and the service manager that started it (systemd, or whoever does
// as sd_listen_fds(3) and sd_notify(3) say). Without one nothing here does anything.
// SPDX-License-Identifier: MIT
#pragma once

#include <systemd/sd-event.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// The pipe of `ListenFIFO=`; no descriptor when none was passed to this process. More than one is
// an error. To be called once, before there are threads: it takes LISTEN_* out of the environment.
Result<UniqueFd> take_passed_descriptor();

class ServiceManager {
 public:
  // Where it asks for signs of life (WatchdogSec=), `loop` sends them from now on, for as long as
  // it turns.
  void keep_informed(sd_event* loop);
  void tell_ready();
  void tell_stopping();
  // What `systemctl status` shows. Sent when it has changed.
  void tell_state(std::size_t workers, std::uint64_t killed);

 private:
  std::string told_;
};

}  // namespace filetimer
