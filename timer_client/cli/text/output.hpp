// Standard output of the commands that print a lot. A reader that went away (`| head`) ends the
// command quietly; a disk that is full is an error with a line that says so.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/result.hpp"

namespace filetimer::cli {

class Output {
 public:
  // Ignores SIGPIPE for the process: from here on it is the result of a write.
  // `name` is for the line of an error.
  explicit Output(int fd = STDOUT_FILENO, std::string name = "standard output");

  // False once the output has no reader; later text is dropped.
  bool write(std::string_view text);
  bool flush();
  // Whether the reader is gone, asked without writing.
  [[nodiscard]] bool is_closed() const;
  [[nodiscard]] int fd() const { return fd_; }

  // The end: flushes, and returns the exit code (0, or 1 after a line on standard error).
  int finish();

 private:
  int fd_;
  std::string name_;
  int error_ = 0;
  std::string pending_;
};

// Colour is for people: only on a terminal, never with NO_COLOR or on a dumb terminal.
bool wants_colour(int fd);

// "timer_client: MESSAGE" on standard error, as one line whatever the message holds.
void complain(std::string_view message);
// One line for each that is not empty.
void complain_of_all(const std::vector<std::string>& messages);
inline void complain_of_all(const std::string& message) {
  complain_of_all(std::vector{message});
}

}  // namespace filetimer::cli
