// What a record of an evidence command says beside the output: how the command ended, and whether
// the record has all that it wrote.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {

// Returns "Evidence command nvidia"; without a name for the command of --evidence-command.
std::string command_name_text(const Record& command);

// Returns "exit status 3 after 2.88 ms", "ended by SIGKILL after 5.13 ms".
std::string command_end_text(const Record& command);

// Returns "It wrote 300000 bytes, of which the record has the first 65536."; "It wrote nothing.";
// empty if the record has all of it.
std::string output_size_text(const Record& command);

}  // namespace filetimer::cli
