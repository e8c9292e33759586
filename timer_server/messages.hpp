// What the daemon says of itself on standard error (or to syslog once it is detached): one line a
// message, from a thread of its own, so that what is behind standard error never stops the loop. A
// write that does not wait for a reader, as the client's messages are written, is not enough here:
// the standard error of a batch job is a file, a write to a file waits for its file system, and
// syslog() waits for its daemon. The queue keeps messages, in order, until they can be written.
// Programs log, libraries do not: only the files of timer_server/ that run the loop use this.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "common/log_level.hpp"

namespace filetimer::messages {

using Level = LogLevel;

// Call once, after the last fork. `to_syslog`: the detached daemon has no standard error.
void start(Level level, bool to_syslog);
// Waits, at most 0.2 s, until what was said is out.
void stop();

void say(Level level, std::string_view line);

template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  say(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  say(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  say(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  say(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace filetimer::messages
