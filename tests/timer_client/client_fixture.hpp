// What the client's tests stand on: a real pipe that is read with bounded waits (a test never
// sleeps to let something happen).
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <filetimer/timer_client.hpp>
#include <functional>
#include <optional>
#include <string>

#include "common/posix.hpp"
#include "common/wire_parser.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/files.hpp"

namespace filetimer::testing {

// One request as a server reads it.
struct Line {
  std::string text;
  pid_t pid = 0;
  std::string scope_id;
  double expiration_time = 0;
  int signal = 0;
  std::optional<double> x_timeout_s;
  std::optional<double> x_grace_s;
  std::optional<double> x_soft_s;
  std::optional<pid_t> x_tid;
  std::string x_scope;  // empty: none
  bool x_whole_process = false;
  bool x_spare_if_left = false;
  std::string x_page;  // empty: it is no hint
  [[nodiscard]] bool is_release() const { return expiration_time < 0; }
};

// A named pipe with a reader that reads when it is asked to.
class Pipe {
 public:
  explicit Pipe(std::string path);
  void open();   // a server comes
  void close();  // and goes
  // The next line, or a failure of the test after kBound.
  Line next();
  // Whether no line is there now.
  bool is_silent();
  // Writes to the pipe until it takes no more; returns the bytes written (empty lines).
  std::size_t fill();
  // Reads away what fill() wrote.
  void drain(std::size_t bytes);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::string unread_;
  wire::Parser parser_;
};

// In a thread of its own, to its end.
void in_thread(const std::function<void()>& body);

// Of the TimerError that `call` throws; or that it threw nothing.
std::string message_of(const std::function<void()>& call);

// Runs `body` in a forked child; its exit code, or -1 when it did not end in time or well.
int in_child(const std::function<int()>& body);
// The same of a child that was made otherwise.
int exit_code_of(pid_t child);

// In a forked child: tries to end and renew the parent's timers, then uses timers of its own.
// Returns 0 when only the latter succeeded, otherwise a bit for each call that went wrong.
int use_in_child(TimerClient& client, std::optional<TimerScope>& scope, TimerId timer);

}  // namespace filetimer::testing
