// A timer_server as a user starts it: its command line, its pipe, its log.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/processes.hpp"

namespace filetimer::bench {

// What a line of ~100 bytes on the wire looks like, as PyTorch's client writes it.
std::string acquire_line(pid_t pid, std::string_view scope, double expiration_time);
std::string release_line(pid_t pid, std::string_view scope);
// Unix seconds an hour from now, for scopes that must not expire.
double far_deadline();

// One expiry as the log tells it.
struct LoggedKill {
  pid_t pid = 0;
  std::int64_t deadline_ns = 0;
  std::int64_t signal_ns = 0;
};

// The server's own count at its end.
struct LastWords {
  std::uint64_t requests = 0;
  std::uint64_t rejected = 0;
};

class ServerUnderTest {
 public:
  // Makes `dir`, starts `program` on it and waits for the ready line. `log` empty: in `dir`.
  ServerUnderTest(const std::string& program, const std::string& dir, const std::string& log = {},
                  const std::vector<std::string>& more_args = {});

  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  [[nodiscard]] const std::string& fifo() const { return fifo_; }
  [[nodiscard]] int pipe() const { return pipe_.get(); }  // open for writing, blocking
  void send(std::string_view lines) const { write_all(pipe_.get(), lines.data(), lines.size()); }
  // All that was sent is read, and judged where it was due.
  void settle() const;

  // SIGTERM; throws unless it ends with status 0.
  LastWords stop();
  // Of a stopped server: every expiry that was followed by a signal.
  [[nodiscard]] std::vector<LoggedKill> kills() const;
  // Likewise, milliseconds from the deadline to the verdict of every expired scope of that name.
  [[nodiscard]] std::vector<double> verdict_delays(std::string_view scope) const;

 private:
  std::string log_;
  std::string fifo_;
  UniqueFd err_;
  Pipe out_;
  Child child_;
  UniqueFd pipe_;
};

// Waits until the pipe behind `fd` is empty.
void wait_until_drained(int fd);

}  // namespace filetimer::bench
