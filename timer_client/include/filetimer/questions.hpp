// What a client may ask its server, and what comes back; see TimerClient. A server of ours answers,
// a bare pipe (PyTorch's server) does not.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace filetimer {

// How long a call may wait for the server's answer, beyond what the server allows itself for it: a
// duration, or a number of seconds. kNoDeadline, infinity and -1 s: as long as it takes. Zero,
// other negatives, NaN and more than some 31 years are InvalidArgument, which the constructor
// throws. Not set: what ScopedRpcTimeout says in this thread, else ConnectOptions::rpc_timeout.
class RpcTimeout {
 public:
  RpcTimeout() = default;
  RpcTimeout(double seconds);                 // NOLINT: `client.ping(2.5)` is meant to be said
  RpcTimeout(std::chrono::nanoseconds time);  // NOLINT: likewise, `client.ping(500ms)`
  template <class Rep, class Period>
  RpcTimeout(std::chrono::duration<Rep, Period> time)  // NOLINT
      : RpcTimeout(std::chrono::duration<double>(time).count()) {}

  [[nodiscard]] bool is_set() const { return time_.has_value(); }
  [[nodiscard]] std::chrono::nanoseconds value_or(std::chrono::nanoseconds other) const {
    return time_.value_or(other);
  }

 private:
  std::optional<std::chrono::nanoseconds> time_;
};

// Holds for all questions that this thread asks while it lives, of any client, also those that it
// asks asynchronously. They nest: the inner one counts, and the outer one again after it.
//   const filetimer::ScopedRpcTimeout patience(5s);
class [[nodiscard]] ScopedRpcTimeout {
 public:
  explicit ScopedRpcTimeout(RpcTimeout timeout);
  ScopedRpcTimeout(const ScopedRpcTimeout&) = delete;
  ScopedRpcTimeout& operator=(const ScopedRpcTimeout&) = delete;
  ~ScopedRpcTimeout();

 private:
  RpcTimeout outer_;
};

struct ServerStatus {
  pid_t server_pid = 0;  // in the server's pid namespace
  std::string server_version;
  std::chrono::nanoseconds uptime{};
  std::string dir;
  std::string fifo;
  std::string log;
  std::string announcement;  // "none", "draining", "shutdown"
  std::int64_t workers = 0;
  std::int64_t open_scopes = 0;
  // Since the server started.
  std::int64_t requests = 0;
  std::int64_t rejected = 0;
  std::int64_t expired = 0;
  std::int64_t killed = 0;
  std::int64_t kills_under_way = 0;
  std::int64_t unkillable = 0;
  std::int64_t askers = 0;  // that wait for an answer: in a rendezvous, or for a shutdown
  std::int64_t descriptors = 0;
  std::int64_t descriptor_limit = 0;
  std::int64_t worker_limit = 0;
  std::string log_trouble;  // empty: the log can be written
  pid_t command_pid = 0;    // of the server's COMMAND; 0: it runs none
  std::string json;         // all of it, one line
};

struct DrainResult {
  bool draining = false;
  std::int64_t open_scope_count = 0;
};

struct ShutdownOptions {
  // Wait for open scopes to end. Otherwise the server refuses at once while some are open.
  bool graceful = true;
  // Wait for the workers to end, too.
  bool workers = false;
  // End whatever is open; where it waits, once the time is up.
  bool force = false;
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};  // over zero, or kNoDeadline
};

struct ShutdownResult {
  std::int64_t open_scope_count = 0;  // that were left open
};

struct RendezvousOptions {
  int rank = -1;                       // 0 to world - 1
  int world = 0;                       // how many ranks meet
  std::chrono::nanoseconds timeout{};  // for all to come; over zero, or kNoDeadline
  std::string name = "default";        // ranks of one name and world meet; 1 to 255 bytes
  // After RendezvousTimeoutError, and no other error: how often to try again, and how long to wait
  // before that; twice as long each time, at most a minute.
  int retries = 0;
  std::chrono::nanoseconds backoff = std::chrono::seconds{1};
};

struct RendezvousResult {
  struct Member {
    int rank = 0;
    pid_t pid = 0;
  };
  std::int64_t round = 0;  // of this name; the same for all who met
  std::vector<Member> joined;
};

}  // namespace filetimer
