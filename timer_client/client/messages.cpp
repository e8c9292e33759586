// SPDX-License-Identifier: MIT
#include "timer_client/client/messages.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <string>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/write_signals.hpp"

namespace filetimer::client_messages {
namespace {

constexpr int kNothing = -1;

// Identify the file that standard error was when the level was set. While another thread sets the
// level, one word may be new and the other old; then a line is lost.
constinit std::atomic<std::uint64_t> device{0};
constinit std::atomic<std::uint64_t> inode{0};
constinit std::atomic<bool> is_set_by_hand{false};

void set_last_level(int last) {
  struct stat st {};
  const bool is_open = ::fstat(STDERR_FILENO, &st) == 0;
  device.store(st.st_dev, std::memory_order_relaxed);
  inode.store(st.st_ino, std::memory_order_relaxed);
  last_written_level.store(is_open ? last : kNothing, std::memory_order_relaxed);
  is_level_chosen.store(last != kNothing, std::memory_order_relaxed);
}

bool is_still(const struct stat& st) {
  return st.st_dev == device.load(std::memory_order_relaxed) &&
         st.st_ino == inode.load(std::memory_order_relaxed);
}

void write_once(int fd, std::string_view line) {
  const WriteSignalsGuard guard;
  if (retry_eintr([&] { return ::write(fd, line.data(), line.size()); }) < 0 &&
      (errno == EPIPE || errno == EFBIG)) {
    guard.consume();
  }
}

}  // namespace

constinit std::atomic<int> last_written_level{kNothing};
constinit std::atomic<bool> is_level_chosen{false};

Result<LogLevel> parse_log_level(std::string_view word) {
  for (const auto& [level, name] : kLogLevels) {
    if (word == name) {
      return level;
    }
  }
  return failure(fmt::format("'{}': expected one of error, warning, info, debug", printable(word)));
}

void set_level(LogLevel level) {
  is_set_by_hand = true;
  set_last_level(static_cast<int>(level));
}

Status take_level_of_environment() {
  if (is_set_by_hand) {
    return {};
  }
  const std::string_view word = environment_word(kLogLevelVariable);
  const auto level = parse_log_level(word);
  set_last_level(level ? static_cast<int>(*level) : kNothing);
  if (!level && !word.empty()) {
    return failure(fmt::format("${}: {}", kLogLevelVariable, level.error().message));
  }
  return {};
}

// poll() alone does not suffice for a pipe that all ranks of a job share: between poll() and the
// write another rank may fill the pipe, and the write then waits for the reader. A pipe or terminal
// that is opened again has its own O_NONBLOCK. A regular file is not opened again, because all
// writers share its position.
void write_if_room(int fd, std::string_view line) noexcept {
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    return;
  }
  if (S_ISSOCK(st.st_mode)) {
    (void)::send(fd, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return;
  }
  if (S_ISREG(st.st_mode)) {
    write_once(fd, line);  // waits for no reader
    return;
  }
  char path[32];
  *fmt::format_to_n(path, sizeof path - 1, "/proc/self/fd/{}", fd).out = '\0';
  const UniqueFd own = open_file(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
  if (own) {
    write_once(own.get(), line);
    return;
  }
  // The pipe belongs to another user (in a container: root), no descriptor is free, or /proc is not
  // mounted. Then poll() must suffice.
  pollfd room{fd, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1 && room.revents == POLLOUT) {
    write_once(fd, line);
  }
}

void write(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept {
  const NoCancellation uncancelled;
  const int error = errno;
  struct stat st {};
  try {
    if (::fstat(STDERR_FILENO, &st) == 0 && is_still(st)) {
      const std::string prefix = fmt::format("filetimer[{}] {}: ", ::getpid(), name_of(level));
      const std::string text = printable(fmt::vformat(format, arguments));
      write_if_room(
          STDERR_FILENO,
          fmt::format("{}{}\n", prefix, utf8_prefix(text, kMaxAtomicWrite - prefix.size() - 1)));
    }
  } catch (const std::exception&) {
    // Out of memory: the message is dropped.
  }
  errno = error;
}

}  // namespace filetimer::client_messages
