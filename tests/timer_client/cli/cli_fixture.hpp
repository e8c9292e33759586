// Shared by the tests of the command line: the logs in data/, and a command that runs in this
// process with captured output.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.hpp"

namespace filetimer::cli {

std::string data_path(std::string_view name);
std::string read_data(std::string_view name);

using testing::contains;
using testing::lines_of;
using testing::TempFolder;
using testing::unwrapped;

struct Ran {
  int code = -1;  // -1: a usage error, whose message is in `errors`
  std::string output;
  std::string errors;
};

// While it lives, the output of commands is taken for a terminal, and so has colours. Their escape
// characters are shown as "^".
class OnTerminal {
 public:
  OnTerminal();
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;
  ~OnTerminal();
};

// Runs a subcommand that starts no process and opens no scope, with the arguments `words`. If
// a file is given, it gets the output.
Ran run_command(const std::vector<std::string>& words, const std::string& to = {});

}  // namespace filetimer::cli
