// The levels of messages of server and client: the words of --log-level and $FILETIMER_LOG_LEVEL.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "common/result.hpp"

namespace filetimer {

inline constexpr const char* kLogLevelVariable = "FILETIMER_LOG_LEVEL";

// Each level includes those before it. The numbers are those of syslog(3).
enum class LogLevel { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };

// Returns the word of the level.
std::string_view name_of(LogLevel level);

// Returns the level of `error`, `warning`, `info` or `debug`. Any other word is an error that
// quotes it.
Result<LogLevel> parse_log_level(std::string_view word);

}  // namespace filetimer
