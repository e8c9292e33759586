// The format of the request pipe, version 1: one JSON object a line, as PyTorch's FileTimerClient
// writes it; and of control requests. The server parses, our clients format. Keys that start with
// x_ are this project's, and other servers ignore them.
//   {"version": 1, "pid": 4711, "scope_id": "forward", "expiration_time": 1795223987.41, "signal":
//   9}
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.hpp"

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

  // Calls `each` with the key and the place of each field. Those that are neither optional nor
  // false by default are required.
  template <class Self, class Each>
  static void visit(Self& self, Each&& each) {
    each("pid", self.pid);
    each("scope_id", self.scope_id);
    each("expiration_time", self.expiration_time);
    each("signal", self.signal);
    each("x_timeout_s", self.x_timeout_s);
    each("x_grace_s", self.x_grace_s);
    each("x_soft_s", self.x_soft_s);
    each("x_tid", self.x_tid);
    each("x_scope", self.x_scope);
    each("x_whole_process", self.x_whole_process);
    each("x_signal_first", self.x_signal_first);
    each("x_page", self.x_page);
  }
  friend bool operator==(const Request&, const Request&) = default;
};

// A control request (docs/protocol.md). Answers are JSON objects, one a line.
struct Question {
  std::string request;
  double wait_s = 0;  // infinite: as long as the server grants
  std::string graceful{};
  bool force = false;
  bool off = false;
  std::string name{};
  std::optional<int> rank{};
  std::optional<int> world{};
  std::optional<int> worker{};  // a pid
  friend bool operator==(const Question&, const Question&) = default;

  template <class Self, class Each>
  static void visit(Self& self, Each&& each) {
    each("request", self.request);
    each("wait_s", self.wait_s);
    each("graceful", self.graceful);
    each("force", self.force);
    each("off", self.off);
    each("name", self.name);
    each("rank", self.rank);
    each("world", self.world);
    each("worker", self.worker);
  }
};

// Returns a wake-up message, with its newline.
std::string format_page_hint(std::string_view page);
// Returns the packet of a control request, without empty fields.
std::string format_question(const Question& question);

// Returns the line of a request, with its newline. With names that bounded_scope_name() has cut it
// is always short enough for one atomic write, escapes included.
std::string format(const Request& request);

// --- for the server, in wire_parser.cpp: clients only write, and link no JSON parser ---

// Reads lines strictly. Unknown keys are ignored if they are JSON, and of repeated keys the last
// one counts (as in Python). Any other fault is an error that says what was expected. Only the line
// is checked here; the server decides whether the pid may be watched.
class Parser {
 public:
  Parser();
  ~Parser();

  // Returns the request of a line without its newline.
  Result<Request> parse(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a control request as strictly. Without a time, it waits for as long as the server grants.
Result<Question> parse_question(std::string_view packet);

}  // namespace filetimer::wire
