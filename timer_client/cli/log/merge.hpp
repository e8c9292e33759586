// The records of many logs as one: each log in its own order, and all of them by their wall-clock
// time. Of each log a block is in memory and no more, however long they are and however many.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <vector>

#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {

// Gives `sink` each record, which is valid until `sink` returns. Ends when it returns false.
void read_merged(std::vector<LogReader>& logs, const std::function<bool(const Record&)>& sink);

}  // namespace filetimer::cli
