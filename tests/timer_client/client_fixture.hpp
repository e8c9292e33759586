// Shared by the client's tests: real pipes that are read with bounded waits (no test sleeps instead
// of waiting for an event), and processes that hold locks.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/wire.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/children.hpp"
#include "tests/support/files.hpp"

namespace filetimer::testing {

// A request as a server reads it.
struct Line : wire::Request {
  std::string text;
  std::shared_ptr<wire::Parser> parser;  // has the texts of the request
  [[nodiscard]] std::string page() const { return std::string(x_page.value_or("")); }
};

// Both ends of a pipe without a name, which block unless the flags have O_NONBLOCK.
struct Ends {
  UniqueFd read;
  UniqueFd write;
};
Ends make_pipe(int flags = 0);

// A named pipe with a reader that reads only when next() is called.
class Pipe {
 public:
  explicit Pipe(std::string path);
  void open();   // as a server that starts
  void close();  // as a server that ends
  // Returns the next line. Fails the test after kBound.
  Line next();
  // Returns whether the pipe has no line now.
  bool is_silent();
  // Writes empty lines until the pipe is full. Returns the number of bytes.
  std::size_t fill();
  // Reads the bytes that fill() has written.
  void drain(std::size_t bytes);
  // Reads all that is in the pipe.
  void discard();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::string unread_;
};

// A runtime directory whose pipe the test reads.
struct PipeFolder : TempFolder {
  Pipe pipe{path("requests")};
};

// Calls `write` 20,000 times, while a reader opens, empties and closes the pipe all the time.
void write_to_flapping(Pipe& pipe, const std::function<void()>& write);

// Runs `body` in another thread, and waits for its end.
void in_thread(const std::function<void()>& body);

// Returns the message of the TimerError that `call` throws, or "nothing was thrown".
std::string message_of(const std::function<void()>& call);

// Starts a process that holds the locks of files until it is killed, as a server or a worker does.
std::unique_ptr<SteppedChild> hold(const std::vector<std::string>& paths);

// Runs `body` in a forked child. Returns its exit code; -1: it did not exit in time or normally.
int in_child(const std::function<int()>& body);
// Returns the same for an existing child.
int exit_code_of(pid_t child);

}  // namespace filetimer::testing
