// What this library throws.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace filetimer {

// The base of every error that this library throws.
class TimerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// No server was there within ConnectOptions::timeout, or none that could be asked.
class ServerUnavailable : public TimerError {
  using TimerError::TimerError;
};
// A timeout of zero or less, a signal that does not exist, and the like.
class InvalidArgument : public TimerError {
  using TimerError::TimerError;
};

// The server did not answer a question within the RPC timeout. what() names the question, how long
// it waited, and whether the server's process is alive, stopped or gone.
class RpcTimeoutError : public TimerError {
 public:
  RpcTimeoutError(const std::string& what, std::string asked, std::chrono::nanoseconds time)
      : TimerError(what), request(std::move(asked)), waited(time) {}
  std::string request;  // "status"
  std::chrono::nanoseconds waited;
};

// Not all ranks came to a rendezvous in time. what() names those that are missing, and those that
// had joined and left again.
class RendezvousTimeoutError : public TimerError {
 public:
  RendezvousTimeoutError(const std::string& what, std::string which, std::vector<int> came,
                         std::vector<int> did_not, std::vector<int> gone)
      : TimerError(what),
        name(std::move(which)),
        joined(std::move(came)),
        missing(std::move(did_not)),
        left(std::move(gone)) {}
  std::string name;
  std::vector<int> joined;  // ranks, as the next two
  std::vector<int> missing;
  std::vector<int> left;  // had joined, and did not wait to the end
};

// A scope as the server sees it.
struct OpenScope {
  pid_t pid = 0;
  std::optional<int> rank;
  std::string scope;
  std::chrono::nanoseconds elapsed{};
  std::optional<std::chrono::nanoseconds> remaining;  // none: it has no deadline
};

// The server refused what it was asked for, or its time was up: for a shutdown while scopes are
// open. what() has the reason and the scopes.
class ServerBusy : public TimerError {
 public:
  ServerBusy(const std::string& what, std::string why, bool was_timeout, std::size_t count,
             std::vector<OpenScope> scopes)
      : TimerError(what),
        reason(std::move(why)),
        timed_out(was_timeout),
        open_scope_count(count),
        open_scopes(std::move(scopes)) {}
  std::string reason;
  bool timed_out;  // it waited for ShutdownOptions::timeout first
  std::size_t open_scope_count;
  std::vector<OpenScope> open_scopes;  // at most 64 of them
};

}  // namespace filetimer
