// What the library says on standard error, one line a message: a notice if there is no server, and
// nothing else, unless $FILETIMER_LOG_LEVEL or timer_client's --log-level asked for it. Libraries
// do not log; but who sets that variable wants to see what goes on in a worker whose program has no
// switch for it. It never holds its worker up, raises no signal and takes no lock: a line that
// can't be written at once is dropped, and any thread and any forked child may speak. Not for the
// path of a scope (page_scope.hpp): a message costs some microseconds, and a look at the level
// where it is off. The server has a file of this name, too; the namespace differs, since one
// program may hold both.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string_view>
#include <utility>

#include "common/log_level.hpp"
#include "common/result.hpp"

namespace filetimer::client_messages {

// From now on for this process; the variable is not looked at any more. What stands at standard
// error now is what is written to: a descriptor 2 that comes to mean something else, say a page or
// a data file after it was closed, is left alone.
void set_level(LogLevel level);
// As $FILETIMER_LOG_LEVEL has it, unset or empty: says nothing. An error quotes what is no level.
Status take_level_of_environment();

// The last LogLevel that is told; below kError: none. Relaxed: nothing else depends on it.
extern constinit std::atomic<int> last_told;
inline bool is_told(LogLevel level) {
  return static_cast<int>(level) <= last_told.load(std::memory_order_relaxed);
}

// Whether a level was asked for, by hand or by the environment.
extern constinit std::atomic<bool> is_level_chosen;

// Of any length and any bytes; told as one line that keeps whole in a pipe. Keeps errno.
void write(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;

template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (is_told(LogLevel::kWarning)) {
    write(LogLevel::kWarning, format, fmt::make_format_args(args...));
  }
}
// For what the user of a program must see though it asked for no messages, once: only with the
// level error it is not written.
template <class... Args>
void notice(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (is_told(LogLevel::kWarning) || !is_level_chosen.load(std::memory_order_relaxed)) {
    write(LogLevel::kWarning, format, fmt::make_format_args(args...));
  }
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (is_told(LogLevel::kInfo)) {
    write(LogLevel::kInfo, format, fmt::make_format_args(args...));
  }
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (is_told(LogLevel::kDebug)) {
    write(LogLevel::kDebug, format, fmt::make_format_args(args...));
  }
}

// All of `line` by one write, or nothing; for `fd` that others share, so that it can't be made
// non-blocking. At most kMaxAtomicWrite bytes.
void write_if_room(int fd, std::string_view line) noexcept;

}  // namespace filetimer::client_messages
