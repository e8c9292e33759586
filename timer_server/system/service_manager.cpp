// SPDX-License-Identifier: MIT
#include "timer_server/system/service_manager.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

constexpr int kFirstPassed = 3;

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> take_variable(const char* name) {
  auto value = variable(name);
  ::unsetenv(name);
  return value;
}

// Returns whether the message is on its way.
bool notify(std::string_view message) {
  const std::string path = variable("NOTIFY_SOCKET").value_or("");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!(path.starts_with('/') || path.starts_with('@')) || path.size() >= sizeof address.sun_path) {
    return false;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path.front() == '@') {  // an abstract name
    address.sun_path[0] = '\0';
  }
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return ::sendto(socket.get(), message.data(), message.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address), length) >= 0;
}

}  // namespace

Result<UniqueFd> take_passed_descriptor() {
  const auto pid = take_variable("LISTEN_PID");
  const auto count = take_variable("LISTEN_FDS");
  const std::string names = take_variable("LISTEN_FDNAMES").value_or("unknown");
  if (!pid || !count) {
    return UniqueFd();
  }
  const auto pid_number = number_from<pid_t>(*pid);
  const int count_number = number_from<int>(*count).value_or(0);
  if (pid_number && *pid_number != ::getpid()) {
    return UniqueFd();
  }
  const std::string trouble =
      fmt::format("cannot take what was passed with $LISTEN_PID '{}' and $LISTEN_FDS '{}'",
                  printable(*pid), printable(*count));
  if (!pid_number || count_number < 1) {
    return system_error(trouble, EINVAL);
  }
  if (count_number > 1) {
    std::string listed;
    for (const char c : printable(names)) {
      listed += c == ':' ? "', '" : std::string(1, c);
    }
    return failure(fmt::format(
        "{} descriptors were passed ('{}'): expected one, the pipe of ListenFIFO=", count_number,
        listed));
  }
  if (::fcntl(kFirstPassed, F_SETFD, FD_CLOEXEC) != 0) {
    return system_error(trouble, errno);
  }
  return UniqueFd(kFirstPassed);
}

void ServiceManager::start_keep_alives(EventLoop& loop) {
  const auto period = variable("WATCHDOG_USEC");
  const auto pid = variable("WATCHDOG_PID");
  if (!period || (pid && number_from<pid_t>(*pid) != ::getpid())) {
    return;
  }
  const auto us = number_from<std::int64_t>(*period).value_or(0);
  if (us < 1 || us > Duration::max() / std::chrono::microseconds{1}) {
    messages::warning("cannot send keep-alives to the service manager: $WATCHDOG_USEC is '{}'",
                      printable(*period));
    return;
  }
  keep_alive_every_ = Duration{std::chrono::microseconds{us}} / 2;
  keep_alive_timer_ = make_timer(loop, kOrdinary, [this] { keep_alive(); });
  keep_alive();
}

void ServiceManager::keep_alive() {
  notify("WATCHDOG=1");
  keep_alive_timer_->arm(Instant::now() + keep_alive_every_);
}

void ServiceManager::notify_stopping() {
  notify("STOPPING=1");
}

void ServiceManager::notify_status(std::size_t workers, std::uint64_t killed) {
  std::string status = fmt::format("STATUS=watching {} worker{}, killed {} since the start",
                                   workers, workers == 1 ? "" : "s", killed);
  if (status != last_status_ && notify(last_status_.empty() ? "READY=1\n" + status : status)) {
    last_status_ = std::move(status);
  }
}

}  // namespace filetimer
