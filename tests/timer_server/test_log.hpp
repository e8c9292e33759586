// The log of a test: the file `log` in its folder, never rotated.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "tests/process/records.hpp"
#include "tests/support/files.hpp"
#include "timer_server/records/record_log.hpp"

namespace filetimer {

inline std::unique_ptr<RecordLog> open_test_log(const testing::TempFolder& folder) {
  RecordLog::Settings settings;
  settings.path = folder.path("log");
  settings.max_bytes = 1 << 30;
  return std::move(*RecordLog::open(settings));
}

// Returns all records that were appended.
inline testing::Records records_of_log(RecordLog& log, const testing::TempFolder& folder) {
  REQUIRE(log.drain(std::chrono::seconds{10}));
  return testing::read_log(folder.path("log"));
}

}  // namespace filetimer
