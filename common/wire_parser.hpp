// Reads the lines and packets of common/wire.hpp, for the server. Clients only write, and link no
// JSON parser.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/result.hpp"
#include "common/wire.hpp"

namespace filetimer::wire {

// Reads lines strictly. Unknown keys are ignored if they are JSON, and of repeated keys the last
// one counts (as in Python). Any other fault is an error that says what was expected. Only the line
// is checked here; the server decides whether the pid may be watched.
class Parser {
 public:
  Parser();
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // Returns how many bytes after a line must be readable. Their values do not matter.
  static std::size_t padding();

  // Returns the request of a line without its newline. padding() bytes after it must be readable.
  Result<Request> parse(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a control request as strictly. Without a time, it waits for as long as the server grants.
Result<Question> parse_question(std::string_view packet);

}  // namespace filetimer::wire
