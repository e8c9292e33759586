// What must hold between the histories of workers and the logs.
// SPDX-License-Identifier: MIT
#include "tests/chaos/rules.hpp"

namespace filetimer::chaos {

void judge_history(const std::vector<JsonRecord>&, const std::vector<std::vector<JsonRecord>>&,
                   std::vector<Violation>&) {}

}  // namespace filetimer::chaos
