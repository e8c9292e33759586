// SPDX-License-Identifier: MIT
#include "common/wire.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "common/json_writer.hpp"

namespace filetimer::wire {
namespace {

// Writes a number as Python's json does.
std::string number(double value) {
  return std::isinf(value) ? std::string(value > 0 ? "Infinity" : "-Infinity")
                           : fmt::format("{}", value);
}

}  // namespace

std::string format_page_hint(std::string_view page) {
  std::string line = fmt::format("{}: {}, \"x_page\": ", kLineStart, kVersion);
  append_json_string(line, page);
  line += "}\n";
  return line;
}

std::string format(const Request& request) {
  std::string line =
      fmt::format("{}: {}, \"pid\": {}, \"scope_id\": ", kLineStart, kVersion, request.pid);
  append_json_string(line, request.scope_id);
  fmt::format_to(std::back_inserter(line), ", \"expiration_time\": {}, \"signal\": {}",
                 number(request.expiration_time), request.signal);
  if (request.x_timeout_s) {
    line += ", \"x_timeout_s\": " + number(*request.x_timeout_s);
  }
  if (request.x_grace_s) {
    line += ", \"x_grace_s\": " + number(*request.x_grace_s);
  }
  if (request.x_soft_s) {
    line += ", \"x_soft_s\": " + number(*request.x_soft_s);
  }
  if (request.x_tid) {
    fmt::format_to(std::back_inserter(line), ", \"x_tid\": {}", *request.x_tid);
  }
  if (request.x_scope) {
    line += ", \"x_scope\": ";
    append_json_string(line, *request.x_scope);
  }
  if (request.x_whole_process) {
    line += ", \"x_whole_process\": true";
  }
  if (request.x_signal_first) {
    line += ", \"x_signal_first\": true";
  }
  line += "}\n";
  return line;
}

}  // namespace filetimer::wire
