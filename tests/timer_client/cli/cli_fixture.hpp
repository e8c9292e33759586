// Shared by the tests of the command line: the logs in data/, and a command that runs in this
// process with captured output.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/posix.hpp"
#include "tests/support/files.hpp"

namespace filetimer::cli {

std::string data_path(std::string_view name);
std::string read_data(std::string_view name);

using testing::contains;
using testing::lines_of;
using testing::TempFolder;
using testing::unwrapped;

// Returns the words of a command line, which have a space between them; '' is an empty word.
std::vector<std::string> split_words(const std::string& command);

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

// Checks with which code and message a subcommand fails.
void check_fails(const std::vector<std::string>& words, int code, const std::string& message);

// A subcommand that a child runs as run_command() does, and whose output comes through a pipe.
class PipedCommand {
 public:
  // `is_expected` judges, in the child, what the subcommand returned.
  PipedCommand(const std::vector<std::string>& words,
               const std::function<bool(const Ran&)>& is_expected);
  PipedCommand(const PipedCommand&) = delete;
  PipedCommand& operator=(const PipedCommand&) = delete;

  // Reads until the output has the property. Returns false after kBound.
  bool has(const std::function<bool(const std::string& text)>& property);
  // The output that was read.
  [[nodiscard]] const std::string& text() const { return text_; }
  // Closes the pipe. Returns whether the subcommand has ended as expected.
  bool ends_without_reader();

 private:
  UniqueFd reader_;
  pid_t child_ = -1;
  std::string text_;
};

}  // namespace filetimer::cli
