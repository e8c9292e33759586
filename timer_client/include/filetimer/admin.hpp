// Control requests to the timer server: ping, status, drain, shutdown and rendezvous.
//
//   const filetimer::AdminClient admin;  // of $FILETIMER_DIR, else of the default directory
//   if (admin.status().open_scopes == 0) {
//     admin.shutdown(filetimer::ShutdownMode::kIfIdle);
//   }
//
// They are a library of their own, filetimer::admin, which links a JSON parser; filetimer::client
// does not. A request blocks the calling thread until the server has answered. It throws
//
//   RpcTimeoutError    no answer came within the RPC timeout
//   ServerUnavailable  no server is there, it went away before it answered, or there is only a pipe
//                      without a runtime directory (PyTorch's server), through which no answer
//                      comes
//   ServerBusy         the server refused
//   InvalidArgument    an argument is wrong, or the server says that the request is
//   TimerError         there is no room for a pipe, or the answer cannot be read
//
// The RPC timeout is, in this order: the argument of the call, the ScopedRpcTimeout of the calling
// thread, AdminOptions::rpc_timeout, $FILETIMER_RPC_TIMEOUT ("500ms", "30s", "inf"), 60 s. The
// server bounds what it grants by its --max-wait.
//
// The following holds for every function of this header.
//   Threads: all may be called from several threads at a time, also on one AdminClient.
//   Signal handlers: none may be called there. A signal that the calling thread handles does not
//     end a wait; `while_waiting` is called right after the handler.
//   Moved-from objects: an AdminClient is copied where it is moved, so the source stays as it was.
//     The results are plain values.
//   Forks: a child may use its copy of an AdminClient. A request under way stays its parent's: the
//     child closes the request's pipe in fork(), and if it was forked in `while_waiting` its copy
//     of the call throws TimerError. A child of a bare clone() or _Fork(), in which no handler of
//     pthread_atfork() runs, holds the pipe until it ends or starts another program; meanwhile the
//     server does not see that its parent withdraws.
//   Files: the constructor reads the environment and opens nothing. Each request makes a named pipe
//     in the directory `replies` of the runtime directory, opens it and the request pipe, and looks
//     at the status page and at /proc; all of it is closed and removed when the call ends. The
//     first request of a process differs only in that it registers with pthread_atfork().
//   Threads of the library: none.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filetimer/errors.hpp>
#include <filetimer/timeout.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace filetimer {

// --- errors ---

// Thrown when the server did not answer within the RPC timeout. what() names the request, the time
// that was waited, and whether the server's process is alive, stopped or gone.
class RpcTimeoutError : public TimerError {
 public:
  RpcTimeoutError(const std::string& what, std::string asked, std::chrono::nanoseconds time)
      : TimerError(what), request(std::move(asked)), waited(time) {}
  std::string request;  // "status"
  std::chrono::nanoseconds waited;
};

// Thrown when not all ranks joined a rendezvous in time. what() names those that are missing, and
// those that had joined and left again.
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

// Thrown when the server refused, or when the time of a shutdown was up while scopes were open.
// what() has the reason and the scopes.
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
  bool timed_out;  // the server waited for the timeout of shutdown() first
  std::size_t open_scope_count;
  std::vector<OpenScope> open_scopes;  // at most 64 of them
};

// --- timeouts ---

// How long a call waits for the server's answer, beyond what the server allows itself for it: a
// duration over zero and at most about 31 years, or max() for no limit. A number without a unit
// does not compile, and a function that gets another duration throws InvalidArgument.
//
//   admin.ping(500ms);
//   admin.status(std::chrono::seconds::max());
//
// Without a value the RPC timeout comes from elsewhere, see the head of this file.
using RpcTimeout = std::optional<Timeout>;

// Sets the RPC timeout of all requests that this thread makes while the object lives. Objects nest:
// the inner one counts, and the outer one again after it.
//
//   const filetimer::ScopedRpcTimeout patience(5s);
class [[nodiscard]] ScopedRpcTimeout {
 public:
  // Throws InvalidArgument.
  explicit ScopedRpcTimeout(RpcTimeout timeout);
  ScopedRpcTimeout(const ScopedRpcTimeout&) = delete;
  ScopedRpcTimeout& operator=(const ScopedRpcTimeout&) = delete;
  // Has to run in the thread that made the object.
  ~ScopedRpcTimeout();

 private:
  RpcTimeout outer_;
};

// --- requests and results ---

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
  std::int64_t askers = 0;  // clients that wait: in a rendezvous, or for a shutdown
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

// What a shutdown waits for, and what becomes of scopes that are open all the same. Python and the
// shell have the same words, without the k.
enum class ShutdownMode {
  kGraceful,       // waits for open scopes; the server stays if they do not end in time
  kGracefulOrNow,  // likewise, but then the server ends whatever is open
  kWorkers,        // waits for the workers to end, too; the server stays if they do not
  kWorkersOrNow,   // likewise, but then the server ends whatever is open
  kIfIdle,         // is refused at once while a scope is open
  kNow,            // ends the server at once
};

struct ShutdownResult {
  std::int64_t open_scope_count = 0;  // that were left open
};

struct RendezvousOptions {
  int rank = -1;                              // 0 to world - 1
  int world = 0;                              // the number of ranks that meet
  Timeout timeout = std::chrono::seconds{0};  // for all to join; over zero, or max()
  std::string name = "default";               // ranks of one name and world meet; 1 to 255 bytes
  // After RendezvousTimeoutError, and no other error: how often to try again, and how long to wait
  // before that; twice as long each time, at most a minute.
  int retries = 0;
  Timeout backoff = std::chrono::seconds{1};
};

struct RendezvousResult {
  struct Member {
    int rank = 0;
    pid_t pid = 0;
  };
  std::int64_t round = 0;  // of this name; the same for all who met
  std::vector<Member> joined;
};

struct AdminOptions {
  // The runtime directory; empty: $FILETIMER_DIR, then the default directory.
  std::string dir{};
  // A request pipe in place of the directory's; empty: that of `dir`.
  std::string fifo{};
  RpcTimeout rpc_timeout{};
  // Called in the calling thread before each wait, so at least every quarter of a second, and right
  // after a signal that the thread handles. What it throws withdraws the request and comes out of
  // the call; a shutdown that the server has granted goes on. Null: nothing is called.
  std::function<void()> while_waiting{};
};

// Names one server and asks it; see the head of this file.
class AdminClient {
 public:
  // Throws InvalidArgument, also for a $FILETIMER_RPC_TIMEOUT that is no duration.
  explicit AdminClient(const AdminOptions& options = {});
  AdminClient(const AdminClient&) = default;
  AdminClient& operator=(const AdminClient&) = default;
  ~AdminClient() = default;

  // Returns when the server has answered.
  void ping(RpcTimeout timeout = {}) const;
  // Returns what the server watches, and what it has done since its start.
  [[nodiscard]] ServerStatus status(RpcTimeout timeout = {}) const;
  // Has the server watch no new scopes while those that are open go on. `on` false ends that, and
  // withdraws a shutdown that waits.
  DrainResult drain(bool on = true, RpcTimeout timeout = {}) const;
  // Ends the server and returns when it has ended. `wait` bounds what `mode` waits for: over zero,
  // or max(). Throws ServerBusy when the server has not ended because of what is open.
  ShutdownResult shutdown(ShutdownMode mode = ShutdownMode::kGraceful,
                          Timeout wait = std::chrono::seconds{30}, RpcTimeout timeout = {}) const;
  // Waits until all ranks have joined. Throws RendezvousTimeoutError when they have not in time. No
  // scope is opened: a rank that hangs here ends with the timeout.
  RendezvousResult rendezvous(const RendezvousOptions& options, RpcTimeout timeout = {}) const;

 private:
  struct Call;
  [[nodiscard]] Call call(RpcTimeout timeout) const;
  std::string pipe_;
  std::string run_folder_;
  std::chrono::nanoseconds rpc_timeout_;
  std::function<void()> while_waiting_;
};

}  // namespace filetimer
