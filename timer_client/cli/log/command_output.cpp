// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/command_output.hpp"

#include <fmt/format.h>

#include "common/limits.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {

std::string command_name_text(const Record& command) {
  return joined({"Evidence command", command.text("drop_in")}, " ");
}

std::string command_end_text(const Record& command) {
  const std::string result = command.text("result");
  const std::string reason = command.text("reason");
  const std::string signal = command.text("name");
  const Integer status = command.integer("exit_status");
  const Number ms = command.number("duration_ms");
  const std::string after = ms ? " after " + seconds_text(*ms / 1e3) : "";
  const std::string exit_status = status ? fmt::format("exit status {}", *status) : "";
  if (result == "exited") {
    return (exit_status.empty() ? "exited" : exit_status) + after;
  }
  if (result == "signalled") {
    return fmt::format("ended by {}{}", signal.empty() ? "a signal" : signal, after);
  }
  if (result == "timed_out") {
    return joined({"timed out" + after, !exit_status.empty() ? exit_status
                                        : signal.empty()     ? "killed"
                                                             : "killed with " + signal});
  }
  if (result == "failed") {
    return joined({"could not be started", reason}, ": ");
  }
  return joined({with_spaces(result) + after, reason}, ": ");
}

// The text of the record may be longer than what was written: bytes that are no UTF-8 are escaped.
std::string output_size_text(const Record& command) {
  const std::int64_t bytes = command.integer("output_bytes").value_or(0);
  if (bytes > static_cast<std::int64_t>(kMaxCommandOutputBytes)) {
    return fmt::format("It wrote {} bytes, of which the record has the first {}.", bytes,
                       kMaxCommandOutputBytes);
  }
  return command.text("output").empty() ? "It wrote nothing." : "";
}

}  // namespace filetimer::cli
