// The pipe's format, version 1: one JSON object a line, as PyTorch's FileTimerClient writes it.
// The server parses, our clients format. Keys that start with x_ are this project's additions and
// are ignored by other servers.
//   {"version": 1, "pid": 4711, "scope_id": "forward", "expiration_time": 1795223987.41, "signal":
//   9}
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/result.hpp"

namespace filetimer::wire {

inline constexpr int kVersion = 1;
// How every well-formed line of PyTorch's client begins; where a glued line is cut in two.
inline constexpr std::string_view kLineStart = "{\"version\"";

// A question to the server, see docs/protocol.md. Strings are as in Request.
struct Question {
  std::string_view request;  // empty: the line is none
  std::string_view reply;    // the name of a pipe in `replies/`
  double wait_s = 0;
  std::string_view graceful;
  bool force = false;
  bool off = false;
  std::string_view name;
  std::optional<int> rank;
  std::optional<int> world;
  friend bool operator==(const Question&, const Question&) = default;
};

struct Request {
  pid_t pid = 0;
  std::string_view scope_id;    // points into the parser; valid until its next parse
  double expiration_time = -1;  // Unix seconds; negative: release; +inf: never expires
  int signal = 0;               // 0 or negative: do not kill

  // What our own clients add. A line with x_timeout_s is known to come from one of them.
  std::optional<double> x_timeout_s;        // what the caller asked for, +inf for none
  std::optional<double> x_grace_s;          // from the signal to SIGKILL; negative: never
  std::optional<double> x_soft_s;           // from its start to a warning
  std::optional<pid_t> x_tid;               // the thread that opened the scope
  std::optional<std::string_view> x_scope;  // the scope's name, where scope_id had to differ
  bool x_whole_process = false;             // the worker's end ends the scope in time
  bool x_idle = false;                      // no scope: open while the worker is in none
  bool x_spare_if_left = false;             // left within the grace, nobody is killed for it
  // Not a timer but a hint: look at this page of `scopes/`. All else is unset then.
  std::optional<std::string_view> x_page;
  // Not a timer but a question; then only `pid` counts beside it.
  Question question;

  [[nodiscard]] bool is_release() const { return expiration_time < 0; }
  [[nodiscard]] bool is_from_own_client() const { return x_timeout_s.has_value(); }
};

// Reads lines strictly: unknown keys are ignored if they are JSON, of repeated keys the last one
// counts (as in Python), everything else wrong is an error that says what was expected. Only what
// the line itself tells is checked here; whether the pid may be watched is the server's to say.
class Parser {
 public:
  Parser();
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // Bytes behind a line that must be readable (their values do not matter).
  static std::size_t padding();

  // `line` without its newline; padding() bytes behind it must be readable.
  Result<Request> parse(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The line by which a worker says that the server should look at its page, with its newline.
std::string format_page_hint(std::string_view page);

// A question, with its newline; what is empty is left out.
std::string format_question(const Question& question, pid_t pid);

// A line with its newline. With names that bounded_scope_name() has cut it is always short enough
// for one atomic write, escapes included.
std::string format(const Request& request);

}  // namespace filetimer::wire
