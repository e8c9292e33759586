// The log of a test: the file `log` in its folder, never rotated.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include "tests/timer_server/temp_folder.hpp"
#include "timer_server/record_log.hpp"

namespace filetimer {

inline std::unique_ptr<RecordLog> open_test_log(const TempFolder& folder) {
  RecordLog::Settings settings;
  settings.path = folder.file("log");
  settings.max_bytes = 1 << 30;
  return std::move(*RecordLog::open(settings));
}

}  // namespace filetimer
