// The messages that the library writes on standard error, one line each: a notice if no server
// runs, and others only if $FILETIMER_LOG_LEVEL or timer_client's --log-level selects them.
// Libraries should not log; the variable is for workers whose program has no option for it.
//
// A message never blocks its worker, raises no signal and takes no lock: a line that cannot be
// written at once is dropped. Any thread and any forked child may write messages. Entering and
// leaving a scope (page_scope.hpp) writes none: a message costs some microseconds, or a check of
// the level if the level excludes it. The server has a file of this name, too; the namespaces
// differ, since one program may link both.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string_view>

#include "common/log_level.hpp"
#include "common/result.hpp"

namespace filetimer::client_messages {

// Returns the level of `error`, `warning`, `info` or `debug`. Any other word is an error that
// quotes it.
Result<LogLevel> parse_log_level(std::string_view word);
// Sets the level of this process; $FILETIMER_LOG_LEVEL is not read any more. Messages go to the
// file that is standard error now: if descriptor 2 is another file later, such as a page or a data
// file that was opened after it was closed, nothing is written.
void set_level(LogLevel level);
// Sets the level of $FILETIMER_LOG_LEVEL; unset or empty: only notices are written. An error quotes
// a word that is not a level.
Status take_level_of_environment();

// The last LogLevel that is written; below kError: none. Relaxed: no other data depend on it.
extern constinit std::atomic<int> last_written_level;
inline bool is_written(LogLevel level) {
  return static_cast<int>(level) <= last_written_level.load(std::memory_order_relaxed);
}

// Whether set_level() or the environment has chosen a level.
extern constinit std::atomic<bool> is_level_chosen;

// Writes a message of any length and any bytes, as one line that stays whole in a pipe. Preserves
// errno.
void write(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;

// A function that writes messages of a level.
template <LogLevel level, bool is_notice = false>
struct Writer {
  template <class... Args>
  void operator()(fmt::format_string<Args...> format, Args&&... args) const noexcept {
    if (is_written(level) || (is_notice && !is_level_chosen.load(std::memory_order_relaxed))) {
      write(level, format, fmt::make_format_args(args...));
    }
  }
};
inline constexpr Writer<LogLevel::kWarning> warning{};
inline constexpr Writer<LogLevel::kInfo> info{};
inline constexpr Writer<LogLevel::kDebug> debug{};
// Writes a message that the user of the program must see, even if no level was chosen. Only the
// level error suppresses it.
inline constexpr Writer<LogLevel::kWarning, true> notice{};

// Writes all of `line`, at most kMaxAtomicWrite bytes, with one write, or nothing. Does not block,
// although `fd` is blocking: other processes share it, so its flags must not be changed.
void write_if_room(int fd, std::string_view line) noexcept;

}  // namespace filetimer::client_messages
