// The servers that clients of a folder do not find by themselves: `timer_server -- COMMAND` makes a
// fresh folder inside the default one.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::cli {

// What to add to "no timer server in 'DIR'", to go on with; empty when no server runs below it.
std::string servers_below(const std::string& dir);

}  // namespace filetimer::cli
