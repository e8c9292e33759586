// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "tests/support/children.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// A child of the test as the server holds its workers.
inline Process process_of(const HeldChild& child) {
  return std::move(*open_process(child.pid()));
}

}  // namespace filetimer
