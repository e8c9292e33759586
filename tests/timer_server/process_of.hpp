// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "tests/support/children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// Returns a child of the test as the Process of a worker.
inline Process process_of(const HeldChild& child) {
  return std::move(*open_process(child.pid()));
}

}  // namespace filetimer
