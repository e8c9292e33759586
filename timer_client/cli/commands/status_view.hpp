// What `timer_client status` prints of the server's answer: its keys in their order, whichever they
// are, so that a newer server's are shown, too.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::cli {

// Empty when `answer` is no JSON object.
std::string status_page(const std::string& answer);

}  // namespace filetimer::cli
