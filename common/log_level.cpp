// SPDX-License-Identifier: MIT
#include "common/log_level.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/text.hpp"

namespace filetimer {

namespace {

constexpr std::pair<LogLevel, std::string_view> kNames[] = {{LogLevel::kError, "error"},
                                                            {LogLevel::kWarning, "warning"},
                                                            {LogLevel::kInfo, "info"},
                                                            {LogLevel::kDebug, "debug"}};

}  // namespace

std::string_view name_of(LogLevel level) {
  return std::ranges::find(kNames, level, [](const auto& each) { return each.first; })->second;
}

Result<LogLevel> parse_log_level(std::string_view word) {
  for (const auto& [level, name] : kNames) {
    if (word == name) {
      return level;
    }
  }
  return failure(fmt::format("'{}': expected one of error, warning, info, debug", printable(word)));
}

}  // namespace filetimer
