// SPDX-License-Identifier: MIT
#include "common/log_level.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace filetimer;

TEST_CASE("a log level is read by the name it has") {
  for (const LogLevel level :
       {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug}) {
    CHECK(parse_log_level(name_of(level)) == level);
  }
  CHECK(parse_log_level("debug") == LogLevel::kDebug);
}

TEST_CASE("a word that is not a log level is an error that quotes it") {
  for (const char* word : {"", "loud", "Debug", "warn", "debug ", "3"}) {
    const auto level = parse_log_level(word);
    REQUIRE_MESSAGE(!level, word);
    CHECK(level.error().message ==
          "'" + std::string(word) + "': expected one of error, warning, info, debug");
  }
}
