// What `timer_client status` prints, apart from the command, for tests.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::cli {

// Returns the keys of the server's answer in their order, and its groups below them; empty:
// `answer` is not a JSON object.
std::string status_page(const std::string& answer);

}  // namespace filetimer::cli
