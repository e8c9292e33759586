// Control requests to the timer server: ping, status, drain, shutdown and rendezvous.
//
//   const filetimer::AdminClient admin;  // of $FILETIMER_DIR, else of the default directory
//   if (admin.status().open_scopes == 0) {
//     admin.shutdown(filetimer::ShutdownMode::kIfIdle);
//   }
//
// This is a library of its own, filetimer::admin, which links a JSON parser; filetimer::client
// links none. A request blocks the calling thread until the server has answered. It throws
//
//   RpcTimeoutError    the server did not answer within the RPC timeout
//   ServerUnavailable  no server runs, or it ended before it answered
//   ServerBusy         the server refused
//   InvalidArgument    an argument is wrong, or the server rejects the request as malformed
//   TimerError         there is no connection to the server, or the answer cannot be read
//
// The RPC timeout is the first of these that is set: the argument of the call, the ScopedRpcTimeout
// of the calling thread, AdminOptions::rpc_timeout, $FILETIMER_RPC_TIMEOUT ("500ms", "30s", "inf");
// else 60 s. The server grants at most its --max-wait.
//
// Threads: all members may be called from several threads at a time.
// Signal handlers: no member may be called in one. A signal that the calling thread handles does
// not end a wait; `while_waiting` is called right after the handler.
// Forks: a child may use its copy of an AdminClient. A request under way stays its parent's: the
// child closes the connection in fork(), and if it was forked in `while_waiting` its copy of the
// call throws TimerError. In a child of a bare clone() or _Fork() no handler of pthread_atfork()
// runs: until it exits or starts another program the server does not see that the parent is killed.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filetimer/errors.hpp>
#include <filetimer/timeout.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace filetimer {

// --- errors ---

// Thrown when the server did not answer within the RPC timeout. what() names the request, the time
// that the call waited, and whether the server's process is alive or stopped.
class RpcTimeoutError : public TimerError {
 public:
  using TimerError::TimerError;
  std::string request;  // "status"
  std::chrono::nanoseconds waited{};
};

// Thrown when not all ranks joined a rendezvous in time. what() names the ranks that are missing,
// and those that had joined and left again.
class RendezvousTimeoutError : public TimerError {
 public:
  using TimerError::TimerError;
  std::string name;
  std::vector<int> joined;  // ranks, as the next two
  std::vector<int> missing;
  std::vector<int> left;  // joined, and did not wait to the end
};

// Thrown when the server refused, or when scopes were still open at the end of a shutdown's wait.
// what() has the reason and the scopes.
class ServerBusy : public TimerError {
 public:
  using TimerError::TimerError;
  std::string reason;
  bool timed_out = false;  // the server waited for the `wait` of shutdown() first
  std::size_t open_scope_count = 0;
  std::string json;  // the whole answer, one line: it lists at most 64 scopes
};

// --- timeouts ---

// How long a call waits for the server's answer, in addition to the wait that the server grants:
// over zero, at most about 31 years, or max() for no limit. A function throws InvalidArgument for
// any other. Not set: see the head of this file.
//
//   admin.ping(500ms);
using RpcTimeout = std::optional<Timeout>;

// Sets the RPC timeout of all requests that this thread makes while the object lives. Objects nest:
// the inner one counts, and the outer one again after it.
//
//   const filetimer::ScopedRpcTimeout patience(5s);
class [[nodiscard]] ScopedRpcTimeout {
 public:
  // Sets the timeout of this thread. Throws InvalidArgument.
  explicit ScopedRpcTimeout(RpcTimeout timeout);
  ScopedRpcTimeout(const ScopedRpcTimeout&) = delete;
  ScopedRpcTimeout& operator=(const ScopedRpcTimeout&) = delete;
  // Sets the outer timeout again. Must run in the thread that made the object.
  ~ScopedRpcTimeout();

 private:
  RpcTimeout outer_;
};

// --- requests and results ---

// What most callers want to know of the answer to status(); `json` has the rest.
struct ServerStatus {
  pid_t server_pid = 0;  // in the server's pid namespace
  std::string server_version;
  std::string announcement;  // "none", "draining", "shutdown"
  std::int64_t workers = 0;
  std::int64_t open_scopes = 0;
  std::int64_t askers = 0;  // clients that wait now, in a rendezvous or for a shutdown
  std::string json;         // the whole answer, one line
};

// What a shutdown waits for, and what happens when its wait is over. Python and the shell name the
// modes "graceful", "graceful_or_now" and so on.
enum class ShutdownMode {
  kGraceful,       // waits until no scope is open; if one still is, the server stays
  kGracefulOrNow,  // waits until no scope is open; if one still is, the server ends
  kWorkers,        // waits until all other workers have exited, too; else the server stays
  kWorkersOrNow,   // waits until all other workers have exited, too; else the server ends
  kIfIdle,         // does not wait: refused if a scope is open, or a kill is under way
  kNow,            // does not wait: the server ends, even if scopes are open
};

struct RendezvousOptions {
  int rank = -1;                              // 0 to world - 1
  int world = 0;                              // the number of ranks on this host
  Timeout timeout = std::chrono::seconds{0};  // for all ranks to join; over zero
  std::string name = "default";               // ranks of one name and world meet; 1 to 255 bytes
};

struct RendezvousResult {
  struct Member {
    int rank = 0;
    pid_t pid = 0;
  };
  std::int64_t round = 0;  // of this name; the same for all ranks that met
  std::vector<Member> joined;
};

struct AdminOptions {
  // The runtime directory; empty: $FILETIMER_DIR, then the default directory.
  std::string dir{};
  RpcTimeout rpc_timeout{};
  // Called in the calling thread before each wait, so at least every quarter of a second, and right
  // after a signal that the thread handles. An exception that it throws withdraws the request and
  // leaves the call; a shutdown that the server has granted continues. Null: no function is called.
  std::function<void()> while_waiting{};
};

struct Asking;  // internal to the library

// Sends control requests to one server; see the head of this file.
class AdminClient {
 public:
  // Reads the environment, and opens nothing yet. Throws InvalidArgument, also for a
  // $FILETIMER_RPC_TIMEOUT that is no duration.
  explicit AdminClient(const AdminOptions& options = {});
  AdminClient(const AdminClient&) = default;  // also what a move does
  AdminClient& operator=(const AdminClient&) = default;
  ~AdminClient() = default;

  // Returns when the server has answered.
  void ping(RpcTimeout timeout = {}) const;
  // Returns what the server watches.
  [[nodiscard]] ServerStatus status(RpcTimeout timeout = {}) const;
  // Has the server refuse new scopes; open scopes stay watched. `on` false ends the drain, and
  // withdraws a shutdown that waits; ServerBusy: COMMAND was sent SIGTERM. Returns how many scopes
  // are open.
  std::int64_t drain(bool on = true, RpcTimeout timeout = {}) const;
  // Ends the server, and returns when it has ended: how many scopes were open then. `wait`: the
  // longest time that `mode` waits; over zero; max() stands for the server's --max-wait. A server
  // around COMMAND ends COMMAND: with SIGTERM; with kNow, or when the time of kGracefulOrNow or
  // kWorkersOrNow has passed, with SIGKILL to all that COMMAND started. Throws ServerBusy if the
  // server stays because a scope is open or a worker runs.
  std::int64_t shutdown(ShutdownMode mode = ShutdownMode::kGraceful,
                        Timeout wait = std::chrono::seconds{30}, RpcTimeout timeout = {}) const;
  // Waits until all ranks of this host have joined; ranks on other hosts have other servers and
  // cannot join. Throws RendezvousTimeoutError if they have not joined in time. It opens no scope:
  // the timeout alone, at most the server's --max-wait, bounds the wait.
  RendezvousResult rendezvous(const RendezvousOptions& options, RpcTimeout timeout = {}) const;

 private:
  std::shared_ptr<const Asking> how_;
};

}  // namespace filetimer
