// The part of `show`'s page that says what the worker was doing.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/log/evidence_record.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {

void add_evidence(Page& page, const std::optional<Evidence>& evidence);

// "futex_wait < do_futex < ...", without offsets, and how many frames were left out.
std::string kernel_stack_text(const std::vector<std::string>& frames);

}  // namespace filetimer::cli
