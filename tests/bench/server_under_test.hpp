// A timer_server as users start it, with its command line, pipe and log.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/processes.hpp"

namespace filetimer::bench {

// Returns a line of about 100 bytes, as PyTorch's client writes it.
std::string request_line(pid_t pid, std::string_view scope, double expiration_time, int signal = 9);
// Returns the Unix seconds so long from now.
double unix_in(std::chrono::nanoseconds lead);

// An expiry in the log.
struct LoggedKill {
  std::int64_t deadline_ns = 0;
  std::int64_t signal_ns = 0;
};

// The counts of the server at its end.
struct LastWords {
  std::int64_t requests = 0;
  std::int64_t rejected = 0;
};

class ServerUnderTest {
 public:
  // Makes `dir`, starts `program` in it and waits for the ready line. `log` empty: in `dir`.
  ServerUnderTest(const std::string& program, const std::string& dir, const std::string& log = {},
                  const std::vector<std::string>& more_args = {});

  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  [[nodiscard]] const std::string& fifo() const { return fifo_; }
  [[nodiscard]] int pipe() const { return pipe_.get(); }  // open for writing, blocking
  void send(std::string_view lines) const { write_all(pipe_.get(), lines.data(), lines.size()); }
  // Returns when all earlier requests were read, and judged if due.
  void settle() const;
  // Settles, waits until the server is at rest, and returns the bytes that it has in memory.
  [[nodiscard]] double resident_at_rest() const;

  // Sends SIGTERM. Throws unless the server exits with 0.
  LastWords stop();
  // Returns every expiry with a signal in the log of a stopped server.
  [[nodiscard]] std::vector<LoggedKill> kills() const;
  // Returns the milliseconds from deadline to verdict of every expired scope of that name in the
  // log of a stopped server.
  [[nodiscard]] std::vector<double> verdict_delays(std::string_view scope) const;

 private:
  std::string log_;
  std::string fifo_;
  UniqueFd err_;
  Pipe out_;
  Child child_;
  UniqueFd pipe_;
};

// Waits until the pipe of `fd` is empty.
void wait_until_drained(int fd);

}  // namespace filetimer::bench
