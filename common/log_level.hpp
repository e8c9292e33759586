// The levels of messages of server and client: the words of --log-level and $FILETIMER_LOG_LEVEL.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "common/result.hpp"

namespace filetimer {

inline constexpr const char* kLogLevelVariable = "FILETIMER_LOG_LEVEL";

// Each level includes those before it.
enum class LogLevel { kError, kWarning, kInfo, kDebug };

// Returns the word of the level.
std::string_view name_of(LogLevel level);

// Returns the level of `error`, `warning`, `info` or `debug`. Any other word is an error that
// quotes it.
Result<LogLevel> parse_log_level(std::string_view word);

}  // namespace filetimer
