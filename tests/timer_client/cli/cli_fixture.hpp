// What the tests of the command line share: the logs in data/, and a command
// run in this process with its output caught.
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
  int code = -1;  // -1: the words were a usage error, told in `errors`
  std::string output;
  std::string errors;
};

// A subcommand that starts nothing and speaks for nobody else, with `words`.
Ran run_command(const std::vector<std::string>& words);

}  // namespace filetimer::cli
