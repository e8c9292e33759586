// The log of a test: the file `log` in its folder, never rotated.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include "tests/files.hpp"
#include "timer_server/record_log.hpp"

namespace filetimer {

inline std::unique_ptr<RecordLog> open_test_log(const testing::TempFolder& folder) {
  RecordLog::Settings settings;
  settings.path = folder.path("log");
  settings.max_bytes = 1 << 30;
  return std::move(*RecordLog::open(settings));
}

}  // namespace filetimer
