// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/output.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/posix.hpp"
#include "common/text.hpp"
#include "timer_client/client/sigpipe_guard.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

}  // namespace

Output::Output(int fd, std::string name) : fd_(fd), name_(std::move(name)) {
  std::signal(SIGPIPE, SIG_IGN);
}

bool Output::write(std::string_view text) {
  if (error_ != 0) {
    return false;
  }
  pending_ += text;
  return pending_.size() < kBufferBytes || flush();
}

bool Output::flush() {
  std::string_view rest = pending_;
  while (error_ == 0 && !rest.empty()) {
    const ssize_t written = retry_eintr([&] { return ::write(fd_, rest.data(), rest.size()); });
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      // Another program has left the terminal in non-blocking mode.
      pollfd writable{fd_, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else {
      error_ = errno;
    }
  }
  pending_.clear();
  return error_ == 0;
}

bool Output::is_closed() const {
  pollfd reader{fd_, 0, 0};
  return error_ != 0 || (::poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0);
}

int Output::finish() {
  flush();
  if (error_ == 0 || error_ == EPIPE) {
    return 0;
  }
  complain(system_error("cannot write to " + name_, error_).value().message);
  return 1;
}

bool wants_colour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb") && ::isatty(fd) == 1;
}

Screen screen_of(int fd) {
  constexpr std::size_t kUsualWidth = 80;  // of a terminal that does not say
  winsize size{};
  const bool is_known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {.width = ::isatty(fd) != 1 ? 0
                   : is_known        ? size.ws_col
                                     : kUsualWidth,
          .has_colour = wants_colour(fd)};
}

void complain(std::string_view message) {
  // If standard error is closed, full or has no reader, the message is lost and the command goes
  // on.
  const SigpipeGuard guard;
  const std::string line = fmt::format("timer_client: {}\n", printable(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
  guard.consume();
}

int failed(std::string_view message, int code) {
  complain(message);
  return code;
}

void complain_of_all(const std::vector<std::string>& messages) {
  for (const std::string& message : messages) {
    if (!message.empty()) {
      complain(message);
    }
  }
}

}  // namespace filetimer::cli
