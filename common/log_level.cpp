// SPDX-License-Identifier: MIT
#include "common/log_level.hpp"

#include <fmt/format.h>

#include "common/text.hpp"

namespace filetimer {

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "info";
}

Result<LogLevel> parse_log_level(std::string_view word) {
  for (const LogLevel level :
       {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug}) {
    if (word == name_of(level)) {
      return level;
    }
  }
  return failure(fmt::format("'{}': expected one of error, warning, info, debug", printable(word)));
}

}  // namespace filetimer
