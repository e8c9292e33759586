// The messages of the server, one line each, on standard error (or syslog, if it is detached). A
// thread of their own writes them, so that the loop never waits. The non-blocking write of the
// client's messages would not suffice: the standard error of a batch job is a file, a write to a
// file waits for its file system, and syslog() waits for its daemon. The queue keeps messages, in
// order, until they can be written. May be used on any thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

#include "common/log_level.hpp"

namespace filetimer::messages {

using Level = LogLevel;

// Starts the thread. Called once, after the last fork. `to_syslog`: the server is detached and has
// no standard error.
void start(Level level, bool to_syslog);
// Waits until all messages are written, at most 0.2 s.
void stop();

// Queues a message. Drops it if its level is not wanted.
void say(Level level, std::string_view line);

// The functions below also drop a message for which there is no memory: they are called where an
// exception would end the server.
template <class... Args>
void say_formatted(Level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    say(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
  }
}

template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  say_formatted(Level::kError, format, std::forward<Args>(args)...);
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  say_formatted(Level::kWarning, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  say_formatted(Level::kInfo, format, std::forward<Args>(args)...);
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  say_formatted(Level::kDebug, format, std::forward<Args>(args)...);
}

}  // namespace filetimer::messages
