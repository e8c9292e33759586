// Standard output of commands with much output. If the reader closes the pipe (`| head`), the
// command ends without a message; a full disk is an error with a message.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.hpp"

namespace filetimer::cli {

class Output {
 public:
  // Ignores SIGPIPE for the process, so that a write fails instead. `name`: for error messages.
  explicit Output(int fd = STDOUT_FILENO, std::string name = "standard output");

  // Returns false once the output has no reader; later text is dropped.
  bool write(std::string_view text);
  bool flush();
  // Whether the reader is gone, asked without writing.
  [[nodiscard]] bool is_closed() const;
  [[nodiscard]] int fd() const { return fd_; }

  // Flushes the output. Returns the exit code: 0, or 1 after a line on standard error.
  int finish();

 private:
  int fd_;
  std::string name_;
  int error_ = 0;
  std::string pending_;
};

// Returns whether to use colour: only on a terminal, never with NO_COLOR or on a dumb terminal.
bool wants_colour(int fd);

// The terminal, pipe or file on which tables are printed.
struct Screen {
  std::size_t width = 0;  // in characters; 0: of a pipe or a file, where nothing is cut
  bool has_colour = false;
};
Screen screen_of(int fd);

// Writes "timer_client: MESSAGE" on standard error, as one line for any bytes.
void complain(std::string_view message);
// Writes that line and returns the exit code.
int failed(std::string_view message, int code);
// Writes one line for each message that is not empty.
void complain_of_all(const std::vector<std::string>& messages);
inline void complain_of_all(const std::string& message) {
  complain_of_all(std::vector{message});
}

}  // namespace filetimer::cli
