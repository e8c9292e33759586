// The two halves of the checker: what must hold of every log, and what must hold between the
// histories and the logs.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tests/chaos/checker.hpp"
#include "tests/chaos/json_record.hpp"

namespace filetimer::chaos {

// `lines`: of all logs, in order.
void judge_log(const std::vector<JsonRecord>& lines, std::vector<Violation>& found);

void judge_history(const std::vector<JsonRecord>& calls, const std::vector<JsonRecord>& records,
                   std::vector<Violation>& found);

}  // namespace filetimer::chaos
