// Finds servers that clients of a folder do not find: `timer_server -- COMMAND` makes a new folder
// inside the default one.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::cli {

// Returns text to append to "no timer server in 'DIR'"; empty: no server runs below `dir`.
std::string servers_below(const std::string& dir);

}  // namespace filetimer::cli
