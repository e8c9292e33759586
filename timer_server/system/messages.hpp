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

// Queues a formatted message. Also drops one for which there is no memory: it is called where an
// exception would end the server.
template <Level kLevel>
struct Say {
  template <class... Args>
  void operator()(fmt::format_string<Args...> format, Args&&... args) const noexcept {
    try {
      say(kLevel, fmt::format(format, std::forward<Args>(args)...));
    } catch (const std::exception&) {
    }
  }
};
inline constexpr Say<Level::kError> error{};
inline constexpr Say<Level::kWarning> warning{};
inline constexpr Say<Level::kInfo> info{};
inline constexpr Say<Level::kDebug> debug{};

// Calls `work`, and reports an exception: other workers must stay watched when memory or
// descriptors run out. Returns whether there was none.
template <class Work>
bool guard(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::exception& exception) {
    error("{}; the server continues", exception.what());
    return false;
  }
}

}  // namespace filetimer::messages
