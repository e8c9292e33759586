// The format of the request pipe, version 1: one JSON object a line, as PyTorch's FileTimerClient
// writes it. The server parses, our clients format. Keys that start with x_ are this project's, and
// other servers ignore them.
//   {"version": 1, "pid": 4711, "scope_id": "forward", "expiration_time": 1795223987.41, "signal":
//   9}
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"

namespace filetimer::wire {

inline constexpr int kVersion = 1;
// The beginning of every well-formed line of PyTorch's client. After a fragment of another line,
// the next line begins there.
inline constexpr std::string_view kLineStart = "{\"version\"";

struct Request {
  pid_t pid = 0;
  std::string_view scope_id;    // of a parsed line: valid until its parser's next parse
  double expiration_time = -1;  // Unix seconds; negative: release; +inf: never expires
  int signal = 0;               // 0 or negative: none

  // The keys of our own clients. A line with x_timeout_s is from one of them.
  std::optional<double> x_timeout_s;        // as requested, +inf for none
  std::optional<double> x_grace_s;          // from the signal to SIGKILL; negative: never
  std::optional<double> x_soft_s;           // from its start to a warning
  std::optional<pid_t> x_tid;               // the thread that opened the scope
  std::optional<std::string_view> x_scope;  // the scope's name, if scope_id had to differ
  bool x_whole_process = false;             // the end of the worker releases the scope
  bool x_signal_first = false;              // the signal comes at the timeout
  // Not a timer but a wake-up message: the server reads this page. Nothing else is set then.
  std::optional<std::string_view> x_page;

  [[nodiscard]] bool is_release() const { return expiration_time < 0; }
  [[nodiscard]] bool is_from_own_client() const { return x_timeout_s.has_value(); }
};

// Returns a wake-up message, with its newline.
std::string format_page_hint(std::string_view page);

// Returns the line of a request, with its newline. With names that bounded_scope_name() has cut it
// is always short enough for one atomic write, escapes included.
std::string format(const Request& request);

}  // namespace filetimer::wire
