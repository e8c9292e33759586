// The levels of messages of server and client: the words of --log-level and $FILETIMER_LOG_LEVEL.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>

namespace filetimer {

inline constexpr const char* kLogLevelVariable = "FILETIMER_LOG_LEVEL";

// Each level includes those before it. The numbers are those of syslog(3).
enum class LogLevel { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };

inline constexpr std::pair<LogLevel, std::string_view> kLogLevels[] = {
    {LogLevel::kError, "error"},
    {LogLevel::kWarning, "warning"},
    {LogLevel::kInfo, "info"},
    {LogLevel::kDebug, "debug"}};

// Returns the word of the level.
inline std::string_view name_of(LogLevel level) {
  return std::ranges::find(kLogLevels, level, [](const auto& each) { return each.first; })->second;
}

}  // namespace filetimer
