// Shared by the tests of the command line: the logs in data/, a command that runs in this process
// with captured output, and the program.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/board.hpp"
#include "common/posix.hpp"
#include "tests/support/files.hpp"

namespace filetimer::cli {

std::string data_path(std::string_view name);
std::string read_data(std::string_view name);

using testing::contains;
using testing::lines_of;
using testing::TempFolder;
using testing::unwrapped;

// Leaves the status page of a server of this boot and pid namespace, with what the test sets.
void write_board(const TempFolder& folder, const std::function<void(Board&)>& set);

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

// Checks all that a subcommand has returned.
void check_ran(const Ran& ran, int code, const std::string& output, const std::string& errors = {});
// Checks with which code and message a subcommand fails.
void check_fails(const std::vector<std::string>& words, int code, const std::string& message);

// A running timer_client, whose output and errors go to one pipe.
class Program {
 public:
  explicit Program(std::vector<std::string> words);
  ~Program();

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Returns the next line; without its newline, or empty, at the end of the output.
  std::string read_line();
  int exit_code();
  // Closes the pipe first.
  int exit_code_without_reader();

 private:
  pid_t pid_ = 0;
  UniqueFd output_;
};

}  // namespace filetimer::cli
