// SPDX-License-Identifier: MIT
#include "timer_server/system/service_manager.hpp"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <vector>

#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

Result<UniqueFd> take_passed_descriptor() {
  const auto quoted = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return fmt::format("${} '{}'", variable, value == nullptr ? "" : printable(value));
  };
  // The variables are read before sd_listen_fds_with_names() removes them.
  const std::string variables = quoted("LISTEN_PID") + " and " + quoted("LISTEN_FDS");
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  if (count < 0) {
    return system_error(fmt::format("cannot take what was passed with {}", variables), -count);
  }
  std::vector<UniqueFd> passed;
  std::string listed;
  for (int i = 0; i < count; ++i) {
    passed.emplace_back(SD_LISTEN_FDS_START + i);
    listed += fmt::format("{}'{}'", i == 0 ? "" : ", ", printable(names[i]));
    ::free(names[i]);
  }
  ::free(names);
  if (passed.size() > 1) {
    return failure(
        fmt::format("{} descriptors were passed ({}): expected one, the pipe of "
                    "ListenFIFO=",
                    passed.size(), listed));
  }
  return passed.empty() ? UniqueFd() : std::move(passed.front());
}

void ServiceManager::start_keep_alives(sd_event* loop) {
  if (const int result = ::sd_event_set_watchdog(loop, 1); result < 0) {
    messages::warning("cannot send keep-alives to the service manager: {}",
                      std::generic_category().message(-result));
  }
}

void ServiceManager::notify_ready() {
  ::sd_notify(0, "READY=1");
}

void ServiceManager::notify_stopping() {
  ::sd_notify(0, "STOPPING=1");
}

void ServiceManager::notify_status(std::size_t workers, std::uint64_t killed) {
  std::string status = fmt::format("STATUS=watching {} worker{}, killed {} since the start",
                                   workers, workers == 1 ? "" : "s", killed);
  if (status != last_status_) {
    ::sd_notify(0, status.c_str());
    last_status_ = std::move(status);
  }
}

}  // namespace filetimer
