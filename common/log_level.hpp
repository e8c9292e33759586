// How much server and client say of themselves; the words of --log-level and $FILETIMER_LOG_LEVEL.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "common/result.hpp"

namespace filetimer {

inline constexpr const char* kLogLevelVariable = "FILETIMER_LOG_LEVEL";

// Each says what those before it say, too.
enum class LogLevel { kError, kWarning, kInfo, kDebug };

std::string_view name_of(LogLevel level);

// `error`, `warning`, `info` or `debug`; anything else is an error that quotes the word.
Result<LogLevel> parse_log_level(std::string_view word);

}  // namespace filetimer
